#include <cmath>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <sstream>

#include "apps/commands/eval_command.h"
#include "apps/commands/generate_command.h"
#include "apps/train/task_scores.h"
#include "core/io/file.h"
#include "core/log.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"
#include "tests/support/message_of.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// What a run says of its model besides the loss.

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;

namespace {

const Overrides kValidating = words(
    "--validation.enable true --validation.freq 4 --validation.steps 3 --validation.seq_len 32 "
    "--validation.local_batch_size 2");

const std::string kLost = "[comm] rank 1 is gone";

/// From the call `label` on, its calls end undone because the rank has failed, as NCCL's do on a GPU: nothing
/// is thrown where they are issued or waited for.
class EndingEarly final : public Communicator {
 public:
  EndingEarly(const Communicator& instead_of, std::string label)
      : Communicator({instead_of.axis(), instead_of.world_ranks(), instead_of.rank()},
                     instead_of.shared_state()),
        label_(std::move(label)) {}

  std::string_view transport() const override { return "none"; }
  bool overlaps() const override { return false; }

 private:
  void issue(Stream&, uint64_t, std::vector<CollectiveCall> calls) override {
    state().calls().began(calls.front().record);
    if (calls.front().label == label_) state().fail(kLost);
    state().calls().ended(calls.front().record);
  }
  void wait_for(uint64_t, Stream&) override {}
  std::unique_ptr<Communicator> make_split(Members) override { return nullptr; }

  std::string label_;
};

}  // namespace

TEST_CASE("validation says perplexity and bits per byte, of bytes that are text") {
  TinyTraining tiny;
  std::ofstream documents(tiny / "documents.txt");
  for (uint32_t i = 0; i < 40; ++i) documents << "document " << i << " of forty <|endoftext|>\n";
  documents.close();
  const Overrides text{"--validation.dataset_path", tiny / "documents.txt"};
  const auto checked = [&](const std::string& run, const Overrides& more) {
    TinyTraining::Run r = tiny.start(run, kValidating + text + more);
    r->run();
    // The last validation came after the last step: the weights are those that it saw.
    const Experiment& e = r->experiment();
    auto sets = open_validation_data(e, *r.ranks);
    double bytes = 0, nats = 0, tokens = 0, specials = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const HostTokens& batch = sets[0].data->read(i * 2);
      r->engine().validate(batch);
      const std::vector<float> losses = r->engine().token_losses();
      REQUIRE(losses.size() == batch.targets.size());
      for (size_t t = 0; t < losses.size(); ++t) {
        const int32_t target = batch.targets[t];
        ++tokens;
        if (e.tokenizer->is_special(target)) {
          ++specials;
        } else {
          bytes += static_cast<double>(e.tokenizer->decode({&target, 1}).size());
          nats += losses[t];
        }
      }
    }
    const double loss = logged(tiny / run, "validation_metrics/loss").back(),
                 bits = logged(tiny / run, "validation_metrics/bits_per_byte").back();
    CHECK(logged(tiny / run, "validation_metrics/perplexity").back() == Approx(std::exp(loss)));
    CHECK(bits == Approx(nats / (std::log(2.0) * bytes)).epsilon(1e-6));
    if (specials == 0) CHECK(bits == Approx(loss * tokens / (std::log(2.0) * bytes)).epsilon(1e-6));
    // Otherwise their losses are in neither sum.
    if (specials > 0) CHECK(bits < loss * tokens / (std::log(2.0) * bytes));
    return specials;
  };
  CHECK(checked("bare", {"--training.add_bos", "false", "--training.add_eos", "false"}) == 0);
  CHECK(checked("marked", {}) > 0);
}

TEST_CASE("tasks are scored during training as ottava eval scores the checkpoint") {
  TinyTraining tiny;
  std::ofstream items(tiny / "items.jsonl");
  for (int i = 0; i < 30; ++i)
    items
        << fmt::format(
               R"({{"query": "item {} of many", "choices": ["one {}", "two", "three and four"], "gold": {}}})",
               i, i, i % 3)
        << "\n";
  items.close();
  const Overrides asking{"--evaluation.enable",
                         "true",
                         "--evaluation.tasks",
                         "[{name: items, path: " + tiny / "items.jsonl" + "}]",
                         "--validation.seq_len",
                         "48",
                         "--validation.local_batch_size",
                         "2"};
  for (const char* mask : {"causal", "block_causal"}) {
    INFO(mask);
    finish(tiny, mask,
           kSaving + asking + Overrides{"--model.attn_mask_type", mask, "--evaluation.freq", "4"});
    // At steps 1, 4 and 8.
    REQUIRE(logged(tiny / mask, "evaluation_metrics/items/acc").size() == 3);
    std::ostringstream out;
    const std::string json = tiny / (std::string(mask) + ".json");
    run_eval_command({.model = tiny / (std::string(mask) + "/checkpoint/step-8"),
                      .tasks = {tiny / "items.jsonl"},
                      .seq_len = 48,
                      .json = json,
                      .dtype = "float32"},
                     out, out);
    const Json scores = Json::parse(read_file(json), json);
    for (const char* metric : {"acc", "acc_norm", "acc_bytes", "acc_stderr"})
      CHECK(logged(tiny / mask, std::string("evaluation_metrics/items/") + metric).back() ==
            Approx(scores.as_array("")[0].at(metric, "").as_number("")));
  }
  // So many of a task, of however many files.
  TinyTraining::Run some = tiny.start(
      "some",
      asking + Overrides{"--evaluation.max_examples", "40", "--evaluation.tasks",
                         fmt::format("[{{name: items, path: [{0}, {0}, {0}]}}]", tiny / "items.jsonl")});
  CHECK(open_tasks(some->experiment()).at(0).task.items.size() == 40);
  CHECK_THAT(message_of([&] {
               tiny.config("none", {"--evaluation.enable", "true"});
             }),
             Contains("evaluation is enabled without tasks or prompts"));
  std::ofstream(tiny / "wrong.jsonl") << R"({"query": "q", "choices": ["a", "b"], "gold": 1})"
                                         "\n"
                                      << R"({"query": "q", "choices": ["a", "b"], "gold": 2})"
                                         "\n";
  CHECK_THAT(message_of([&] {
               tiny.start("wrong", asking + Overrides{"--evaluation.tasks",
                                                      "[{name: wrong, path: " + tiny / "wrong.jsonl" + "}]"});
             }),
             Contains("'" + tiny / "wrong.jsonl" + "' line 2: gold 2 is out of range"));
}

TEST_CASE("a question that cannot be scored is refused before the first step") {
  TinyTraining tiny;
  const auto tokenizer = Tokenizer::load(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256");
  REQUIRE(tokenizer->encode("th", {}).size() == 1);
  std::ofstream(tiny / "joined.jsonl")
      << R"({"query": "t", "choices": ["h", "x"], "gold": 0, "delimiter": ""})"
         "\n";
  CHECK_THAT(message_of([&] {
               tiny.start("run", {"--evaluation.enable", "true", "--evaluation.tasks",
                                  "[{name: joined, path: " + tiny / "joined.jsonl" + "}]"});
             }),
             Contains("question 1 of joined: the tokenizer merges the choice 'h' with the end"));
}

TEST_CASE("a step is saved before what is asked after it, which may fail") {
  TinyTraining tiny;
  const CapturedOutput log;
  log::set_level(log::Level::info);
  const Overrides asking{"--validation.dataset_path", tiny.text_path(),
                         "--evaluation.enable",       "true",
                         "--evaluation.prompts",      "[\"the octave\"]",
                         "--evaluation.freq",         "4",
                         "--checkpoint.interval",     "4"};
  finish(tiny, "run", kSaving + kValidating + asking);
  log::set_level(log::Level::warning);
  size_t at = 0;
  for (const char* line : {"validate step:  1", "sample step:  1", "/step-4:", "validate step:  4",
                           "sample step:  4", "/step-8:", "validate step:  8", "sample step:  8"}) {
    INFO(line);
    at = log.text().find(line, at);
    REQUIRE(at != std::string::npos);
  }
}

TEST_CASE("prompts whose continuation is longer than the model is meant for are told at the start") {
  TinyTraining tiny;
  const auto warned = [&](const char* run, const Overrides& more) {
    const CapturedOutput log;
    tiny.start(run, more + Overrides{"--evaluation.enable", "true", "--evaluation.prompts", "[\"\", \"a\"]"});
    return log.text();
  };
  const Overrides short_model{"--model.max_seq_len", "32", "--evaluation.max_new_tokens"};
  CHECK_THAT(
      warned("long", short_model + Overrides{"31"}),
      Contains("evaluation.prompts and evaluation.max_new_tokens make up to 33 tokens, but the model is "
               "meant for 32 (model.max_seq_len, or max_position_embeddings of its checkpoints)"));
  for (const Overrides& fits :
       {short_model + Overrides{"30"}, Overrides{"--evaluation.max_new_tokens", "300"}})
    CHECK_THAT(warned("fits", fits), !Contains("evaluation.max_new_tokens"));
}

TEST_CASE("prompts are continued during training as ottava generate continues them") {
  TinyTraining tiny;
  const Overrides asking{"--evaluation.enable",         "true",
                         "--evaluation.freq",           "4",
                         "--evaluation.prompts",        "[\"the octave, \\\"above\\\"\", \"a\"]",
                         "--evaluation.max_new_tokens", "9"};
  const std::vector<std::string> prompts{"the octave, \"above\"", "a"};
  auto samples_of = [&](const std::string& run) {
    std::map<int64_t, std::vector<std::string>> texts;
    for (const Json& line : logged_lines(tiny / run)) {
      const Json* samples = line.find("samples");
      if (!samples) continue;
      for (size_t i = 0; i < prompts.size(); ++i) {
        const Json& sample = samples->as_array("samples")[i];
        CHECK(sample.at("prompt", "").as_string("") == prompts[i]);
        texts[line.at("step", "").as_integer("")].push_back(sample.at("text", "").as_string(""));
      }
    }
    return texts;
  };
  const Everything plain = finish(tiny, "plain", kSaving);
  CHECK((finish(tiny, "run", kSaving + asking + Overrides{"--metrics.enable_tensorboard", "true"}) == plain));
  const auto texts = samples_of("run");
  REQUIRE(texts.size() == 3);  // at steps 1, 4 and 8
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerateCommand command;
    command.checkpoint = tiny / "run/checkpoint/step-8";
    command.prompts = {prompts[i]};
    command.max_tokens = 9;
    command.sampling.temperature = 0;
    command.dtype = "float32";
    std::ostringstream out, notes;
    run_generate_command(command, out, notes);
    CHECK(out.str() == prompts[i] + texts.at(8)[i] + "\n");
  }
  // The last text is in TensorBoard's file, too.
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(tiny / "run/tb"))
    events += read_file(entry.path());
  CHECK_THAT(events, Contains("samples/0") && Contains(prompts[0] + texts.at(8)[0]));
  // Drawn texts are the same again, and what a run that goes on writes is what the whole one wrote.
  const Overrides drawn = kSaving + asking + Overrides{"--evaluation.temperature", "1"};
  finish(tiny, "drawn", drawn);
  const auto first = samples_of("drawn");
  CHECK(first != texts);
  finish(tiny, "again", drawn);
  CHECK(samples_of("again") == first);
  for (int later : {6, 8})
    std::filesystem::remove_all(tiny / ("drawn/checkpoint/step-" + std::to_string(later)));
  finish(tiny, "drawn", drawn);
  CHECK(samples_of("drawn") == first);

  // In FP8, too, whose products are of 16 rows; validation changes nothing of it, and both nothing of
  // training.
  for (const std::string recipe : {"tensorwise", "delayed", "rowwise", "blockwise", "mxfp8"}) {
    INFO(recipe);
    const Overrides validating = kValidating + Overrides{"--validation.dataset_path", tiny.text_path()};
    const Overrides fp8 = words(
                              "--model.converters [quantize.linear.float8] --model.dim 128 "
                              "--model.n_heads 4 --model.n_kv_heads 4 --model.ffn_dim 256 "
                              "--training.mixed_precision_param bfloat16") +
                          Overrides{"--quantize.linear.float8.recipe_name", recipe};
    const Everything both = finish(tiny, recipe, asking + validating + fp8);
    REQUIRE(samples_of(recipe).size() == 3);
    CHECK(samples_of(recipe).at(8)[0].size() > 3);
    finish(tiny, recipe + "_asked", asking + fp8);
    CHECK(samples_of(recipe + "_asked") == samples_of(recipe));
    CHECK((finish(tiny, recipe + "_only", fp8) == both));
  }
  CHECK_THAT(message_of([&] {
               tiny.start("output", asking + Overrides{"--model.converters", "[quantize.linear.float8]",
                                                       "--quantize.linear.float8.policy",
                                                       "[{match: output, recipe: tensorwise}]",
                                                       "--training.mixed_precision_param", "bfloat16",
                                                       "--model.dim", "128"});
             }),
             Contains("prompts are not supported with the output layer in FP8"));

  CHECK_THAT(message_of([&] {
               tiny.start("empty", {"--evaluation.enable", "true", "--evaluation.prompts", "[\"\"]",
                                    "--model.hf_assets_path", OTTAVA_SOURCE_DIR "/tests/golden/chat/qwen"});
             }),
             Contains("prompt 1 is empty and the tokenizer has no BOS token"));
}

TEST_CASE("a rank that fails while prompts are continued is named by the others") {
  TrainingShape shape = tiny_shape(tiny_llama(), 1, 8);
  shape.prompts = 2;
  shape.sample_length = 4;
  std::string errors[2];
  std::latch over(2);
  run_thread_ranks({.ranks = 2, .timeout_seconds = 10}, [&](Communicator& world) {
    const int rank = world.rank();
    EngineRun run(shape, std::make_unique<RankGroups>(groups_over(world, Mesh({.dp_shard = 2}, 2))),
                  {DeviceType::cpu, 0});
    run->parameters().initialise(7);
    const std::vector<int32_t> tokens{1, 2};
    errors[rank] = message_of([&] { run->next_logits(tokens, rank == 1 ? shape.sample_length : 0); });
    over.arrive_and_wait();
  });
  CHECK_THAT(errors[1], Contains("positions [4, 5) do not fit a cache of 4"));
  CHECK_THAT(errors[0], Contains("[comm] rank 1 stopped: " + errors[1]));
}

TEST_CASE("what a lost rank left unfinished is refused: logits of prompts and sums over stages") {
  SECTION("logits") {
    TrainingShape shape = tiny_shape(tiny_llama(), 1, 8);
    shape.prompts = 2;
    shape.sample_length = 4;
    EngineRun run(shape);
    run->parameters().initialise(7);
    const std::vector<int32_t> tokens{1, 2};
    CHECK_FALSE(run->next_logits(tokens, 0).empty());
    run.ranks().world->state().fail(kLost);
    CHECK(message_of([&] { run->next_logits(tokens, 1); }) == kLost);
  }
  SECTION("sums") {
    const Layout layout{.micro_batches = 2, .pp = 2};
    const TrainingShape shape = shape_on(tiny_shape(tiny_llama(), 2, 8), layout);
    std::string error;
    std::latch over(2);
    run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
      auto ranks = std::make_unique<RankGroups>(groups_over(world, layout.mesh()));
      if (world.rank() == 0) {
        ranks->coordinates.units = shape.pipeline.units_of(0);
        ranks->pp = std::make_unique<EndingEarly>(*ranks->pp, "validation loss");
        EngineRun run(shape, std::move(ranks), {DeviceType::cpu, 0});
        error = message_of([&] { run->over_stages(3); });
      }
      over.arrive_and_wait();
    });
    CHECK(error == kLost);
  }
}
