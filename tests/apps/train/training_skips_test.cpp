#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "apps/step/non_finite.h"
#include "apps/train/skipped_step.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/text/listed.h"
#include "parallel/checkpoint/folder.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

// Steps whose gradient is not finite.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const Overrides kOneToken =
    kSaving + Overrides{"--training.seq_len", "1", "--training.local_batch_size", "1"};
/// The gradient of one token and its z-loss, times 8e37, leaves FP32's range. The fifth such step ends a run.
const Overrides kOverflowing =
    kOneToken +
    words("--training.loss_scale 8e37 --training.z_loss_weight 1 --training.max_consecutive_skipped_steps 4");

/// The events of a run, each with its step: "start 0, saved 3".
std::string events_of(const std::string& folder) {
  std::istringstream lines(read_file(folder + "/events.jsonl"));
  std::string events;
  for (std::string line; std::getline(lines, line);) {
    const Json event = Json::parse(line, "events.jsonl");
    add_item(events, fmt::format("{} {}", event.at("event", "event").as_string("event"),
                                 event.at("step", "step").as_integer("step")));
  }
  return events;
}

}  // namespace

TEST_CASE("an update that breaks the weights ends the run at its save, and the checkpoint before it stays") {
  TinyTraining tiny;
  const Overrides saving = kSaving + Overrides{"--checkpoint.interval", "1"};
  finish(tiny, "run", saving + Overrides{"--training.steps", "2"});
  CHECK_THAT(message_of([&] {
               tiny.start("run",
                          saving + Overrides{"--optimizer.lr", "1e20", "--optimizer.weight_decay", "1e20"})
                   ->run();
             }),
             Contains("step-3 is not saved, because '") && Contains("is not finite at [") &&
                 Contains("lower optimizer.lr"));
  const auto steps = checkpoint::list_steps(tiny / "run/checkpoint");
  REQUIRE(!steps.empty());
  CHECK(steps.back().step == 2);
  CHECK(finish(tiny, "run", saving).state.step == 8);
}

TEST_CASE("a step whose gradient is not finite moves nothing but data and schedule") {
  TinyTraining tiny;
  TinyTraining::Run run = tiny.start("run", {"--training.loss_scale", "dynamic"});
  run->step(nullptr);
  const int parameter = GENERATE(0, 3);
  const float poison =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  float* weight = master(*run.trainer, parameter);
  const float before = weight[5];
  // Every row of the embedding, since a batch does not use all of them.
  const int64_t count = run->engine().parameters().shard(parameter).master.numel();
  std::vector<float> weights(weight, weight + count);
  std::fill(weight, weight + count, poison);
  run->engine().parameters().refresh_compute_copies();
  const Everything poisoned = everything_of(*run.trainer);
  StepOutputs out = run->step(nullptr);
  CHECK(out.skipped);
  CHECK_FALSE(std::isfinite(out.grad_norm));
  Everything after = everything_of(*run.trainer);
  CHECK((after.tensors == poisoned.tensors));
  CHECK(after.state.step == poisoned.state.step + 1);
  CHECK(after.state.schedule_step == poisoned.state.schedule_step + 1);
  CHECK(after.state.data_position == poisoned.state.data_position + 2);
  CHECK(after.state.tokens_seen == poisoned.state.tokens_seen + 64);
  CHECK(after.state.optimizer_step == poisoned.state.optimizer_step);
  CHECK(after.state.skipped_steps == 1);
  CHECK(after.state.consecutive_skips == 1);
  CHECK(after.state.loss_scale->scale == LossScale::kInitial / 2);
  CHECK(non_finite_gradients(run->engine()) != "");
  std::copy(weights.begin(), weights.end(), weight);
  run->engine().parameters().refresh_compute_copies();
  CHECK(weight[5] == before);
  CHECK_FALSE(run->step(nullptr).skipped);
  CHECK(run->state().optimizer_step == 2);
  CHECK(run->state().skipped_steps == 1);
  CHECK(run->state().consecutive_skips == 0);
  CHECK(non_finite_gradients(run->engine()) == "");
}

TEST_CASE("the loss scale that is logged is the one that the step had, not the next one's") {
  TinyTraining tiny;
  TinyTraining::Run run = tiny.start("run", {"--training.loss_scale", "dynamic", "--training.steps", "3"});
  float* weight = master(*run.trainer, 0);
  std::fill_n(weight, run->engine().parameters().shard(0).master.numel(), NAN);
  run->engine().parameters().refresh_compute_copies();
  CHECK(run->run() == Trainer::End::completed);
  CHECK(run->state().skipped_steps == 3);
  CHECK(logged(tiny / "run", "loss_scale") == std::vector<double>{65536, 32768, 16384});
}

TEST_CASE(
    "a run that its own error ends completes the save in flight, and says that error whatever comes of it") {
  TinyTraining tiny;
  const std::string tokenizer = tiny / "tokenizer";
  fs::copy(OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256", tokenizer);
  // The error comes one step after the save began, before the loop looks at it again.
  const Overrides overflowing =
      kOverflowing + Overrides{"--checkpoint.interval",  "4",      "--checkpoint.async_mode", "async",
                               "--model.hf_assets_path", tokenizer};
  const std::string reason = "5 consecutive steps had non-finite gradients";
  const CapturedOutput captured;
  CHECK(has(message_of([&] { tiny.start("run", overflowing)->run(); }), reason));
  const std::string skipped = "skipped 1, skipped 2, skipped 3, skipped 4, ";
  CHECK(events_of(tiny / "run") == "start 0, " + skipped + "skipped 5, saved 4, failed 5");
  CHECK(tiny.start("run", overflowing)->state().step == 4);

  // Behind the tensors comes a file that is too long to be written.
  std::ofstream(tokenizer + "/vocab.json") << std::string(3'000'000, ' ');
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit little{2'000'000, before.rlim_max};
  std::string message;
  {
    TinyTraining::Run full = tiny.start("full", overflowing);
    ::setrlimit(RLIMIT_FSIZE, &little);
    message = message_of([&] { full->run(); });
    ::setrlimit(RLIMIT_FSIZE, &before);
  }
  CHECK(has(message, reason));
  CHECK(has(captured.text(), "the save in progress was not completed: "));
  CHECK(fs::is_empty(tiny / "full/checkpoint"));
  CHECK(events_of(tiny / "full") == "start 0, " + skipped + "skipped 5, failed 5");
}

TEST_CASE("a checkpoint is an event when it is complete, by its own step") {
  TinyTraining tiny;
  const std::string mode = GENERATE("disabled", "async");
  finish(tiny, "run", kSaving + Overrides{"--training.steps", "7", "--checkpoint.async_mode", mode});
  CHECK(events_of(tiny / "run") == "start 0, saved 3, saved 6, saved 7, finished 7");
}

TEST_CASE("of two ranks' errors, only the one that both throw completes the save in flight") {
  TinyTraining tiny;
  const CapturedOutput captured;
  std::string errors[2];
  const auto run_two = [&](const std::string& name, const Overrides& overrides,
                           const std::function<void(Trainer&, int rank)>& before) {
    const Config c = tiny.config(name, kSaving + overrides +
                                           Overrides{"--checkpoint.async_mode", "async",
                                                     "--parallelism.data_parallel_replicate_degree", "2"});
    run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
      const Experiment e = resolve_experiment(c, load_tokenizer(c), 2);
      RankGroups ranks = groups_over(world, e.mesh);
      Trainer trainer(e, ranks, {DeviceType::cpu, 0}, nullptr);
      before(trainer, world.rank());
      errors[world.rank()] = message_of([&] { trainer.run(); });
    });
  };
  const std::string cut_off = "finishing it takes all ranks, and not all go on",
                    not_completed = "the save in progress was not completed: ";

  run_two("both",
          {"--training.seq_len", "1", "--training.local_batch_size", "1", "--training.loss_scale", "8e37",
           "--training.z_loss_weight", "1", "--training.max_consecutive_skipped_steps", "3"},
          [](Trainer&, int) {});
  for (const std::string& error : errors) CHECK(has(error, "4 consecutive steps had non-finite gradients"));
  CHECK(checkpoint::list_steps(tiny / "both/checkpoint").back().step == 3);
  CHECK_FALSE(has(captured.text(), cut_off));

  run_two(
      "one",
      {"--training.mixed_precision_param", "bfloat16", "--model.converters", "quantize.linear.float8",
       "--quantize.linear.float8.recipe_name", "blockwise"},
      [](Trainer& trainer, int rank) {
        trainer.step(nullptr);
        trainer.checkpoints().save(trainer.engine(), trainer.state(), false);
        Fsdp& parameters = trainer.engine().parameters();
        parameters.begin_step();
        const Tensor scales =
            parameters.float8()->operand(trainer.stream(), 0, WeightUse::forward, {}).rowwise.scale_inverse;
        if (rank == 1) scales.as<float>()[0] = 3;
      });
  CHECK(has(errors[0], "[comm] rank 1 stopped: "));
  CHECK(has(errors[1], "is 3, not a power of two"));
  CHECK(has(captured.text(), "the checkpoint of step 1 was being written and stays unfinished (" + cut_off));
  CHECK_FALSE(has(captured.text(), not_completed));
}

TEST_CASE("a step whose clipped gradients would vanish is skipped, and says what is too small") {
  TinyTraining tiny;
  const CapturedOutput captured;
  TinyTraining::Run run = tiny.start(
      "run", {"--training.steps", "1", "--training.loss_scale", "1e30", "--training.max_norm", "1e-15"});
  run->run();
  CHECK(run->state().skipped_steps == 1);
  CHECK(run->state().optimizer_step == 0);
  CHECK(has(captured.text(), "step 1 was skipped: what gradients would be multiplied by vanishes; "));
  CHECK(has(captured.text(), "training.max_norm 1e-15 / gradient norm "));
  const std::string advice =
      " / loss scale 1e+30 is too small for float32; lower training.loss_scale or raise training.max_norm";
  CHECK(has(captured.text(), advice));
  CHECK(
      has(captured.text(), "the run ends with 1 step that was skipped, the last because training.max_norm "));
  CHECK(has(captured.text(), advice + ": its weights are those of step 0\n"));
  CHECK_FALSE(has(captured.text(), "non-finite"));
}

TEST_CASE("a run that too many vanishing gradients end says so, and what is too small") {
  TinyTraining tiny;
  const CapturedOutput captured;
  const auto message_with = [&](const std::string& name, const Overrides& overrides) {
    return message_of([&] {
      tiny.start(name, overrides + Overrides{"--training.max_consecutive_skipped_steps", "1"})->run();
    });
  };
  const std::string constant =
      message_with("constant", {"--training.loss_scale", "1e30", "--training.max_norm", "1e-15"});
  CHECK(
      constant.starts_with("[training] 2 consecutive steps were skipped "
                           "(training.max_consecutive_skipped_steps is 1), the last because "
                           "training.max_norm 1e-15 / gradient norm "));
  CHECK(
      constant.ends_with(" / loss scale 1e+30 is too small for float32; lower training.loss_scale or raise "
                         "training.max_norm"));
  const std::string dynamic =
      message_with("dynamic", {"--training.loss_scale", "dynamic", "--training.max_norm", "1.2e-38"});
  CHECK(dynamic.ends_with(" / loss scale 32768 is too small for float32; raise training.max_norm"));
  StepOutputs unscaled;
  unscaled.grad_norm = 3;
  unscaled.loss_scale = 1;
  CHECK(describe_vanishing(unscaled, {})
            .ends_with(" / loss scale 1 is too small for float32; raise training.max_norm"));
}

TEST_CASE("a gradient of exactly 0 beside a loss is told once, as what the squares of activations do to it") {
  TinyTraining tiny;
  const CapturedOutput captured;
  TinyTraining::Run run = tiny.start("run", {"--training.steps", "3"});
  std::fill_n(master(*run.trainer, 0), run->engine().parameters().shard(0).master.numel(), 1e25f);
  run->engine().parameters().refresh_compute_copies();
  CHECK(run->run() == Trainer::End::completed);
  CHECK(run->state().skipped_steps == 0);
  CHECK(logged(tiny / "run", "grad_norm") == std::vector<double>(3, 0));
  const std::string warning =
      "step 1: the gradient norm is exactly 0 although 64 tokens have a mean loss of 7.7213, so nothing is "
      "learnt any more: activations have probably grown until their squares overflow float32, which norms "
      "take for 0; begin anew, or from a checkpoint of before the loss rose, with a lower optimizer.lr or "
      "more lr_scheduler.warmup_steps\n";
  CHECK(has(captured.text(), warning));
  CHECK_FALSE(has(captured.text(), "step 2: the gradient norm"));
  CHECK(events_of(tiny / "run") == "start 0, alert 1, finished 3");
}

TEST_CASE("too many skipped steps in a row end the run, and the count survives a restart") {
  TinyTraining tiny;
  const Overrides overflowing = kOverflowing + Overrides{"--checkpoint.interval", "2"};
  const CapturedOutput captured;
  auto message = message_of([&] { tiny.start("run", overflowing)->run(); });
  CHECK(has(message,
            "[training] 5 consecutive steps had non-finite gradients (training.max_consecutive_skipped_steps "
            "is 4)"));
  CHECK(has(message, "lower optimizer.lr"));
  CHECK(message.ends_with("check the data after sample 0"));
  const std::string log = captured.text();
  CHECK(has(log, "step 5 was skipped: the gradient norm is not finite"));
  CHECK(has(log, "are unchanged; rank 0: loss finite in its only micro-batch, gradients not finite in "));
  CHECK(has(log, "WARNING"));
  CHECK(checkpoint::list_steps(tiny / "run/checkpoint").back().step == 4);
  TinyTraining::Run again = tiny.start("run", overflowing);
  CHECK(again->state().skipped_steps == 4);
  CHECK(again->state().consecutive_skips == 4);
  CHECK(again->state().optimizer_step == 0);
  CHECK(has(message_of([&] { again->run(); }), "5 consecutive steps"));
  // Four steps of two sequences, then two of one.
  const auto message_with = [&](const char* batch, const char* limit) {
    return message_of([&] {
      tiny.start("smaller", overflowing + Overrides{"--training.local_batch_size", batch,
                                                    "--training.max_consecutive_skipped_steps", limit})
          ->run();
    });
  };
  CHECK(has(message_with("2", "4"), "5 consecutive steps"));
  const std::string smaller = message_with("1", "5");
  CHECK(has(smaller, "6 consecutive steps"));
  CHECK(smaller.ends_with("check the data after sample 0"));
  // Without the overflow the same run goes on.
  TinyTraining::Run cured =
      tiny.start("run", kOneToken + Overrides{"--training.max_consecutive_skipped_steps", "0"});
  CHECK(cured->run() == Trainer::End::completed);
  CHECK(cured->state().optimizer_step == 4);
  CHECK(cured->state().skipped_steps == 4);
  CHECK(has(
      message_of([&] {
        tiny.start("none", overflowing + Overrides{"--training.max_consecutive_skipped_steps", "0"})->run();
      }),
      "[training] 1 consecutive step had non-finite gradients"));
}

TEST_CASE(
    "checkpoints of skipped steps delete none from before them, and the error says where to go back to") {
  TinyTraining tiny;
  const Overrides saving =
      kSaving + Overrides{"--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "2"};
  const std::string mode = GENERATE("disabled", "async");
  finish(tiny, "run", saving + Overrides{"--training.steps", "4"});
  // One update leaves weights that are finite, but whose products are not.
  const Overrides broken = saving + Overrides{"--optimizer.lr", "1e36", "--checkpoint.async_mode", mode};
  const CapturedOutput captured;
  CHECK(finish(tiny, "run", broken + Overrides{"--training.steps", "9"}).state.consecutive_skips == 4);
  CHECK(has(
      captured.text(),
      "the run ends with 4 steps that had non-finite gradients and were skipped: its weights are those of "
      "step 5 and may be broken; go on from step 5: checkpoint.load_step 5, or 4 if"));
  const auto steps = [&] {
    std::string text;
    for (const auto& saved : checkpoint::list_steps(tiny / "run/checkpoint"))
      add_item(text, std::to_string(saved.step));
    return text;
  };
  CHECK(steps() == "4, 5, 8, 9");
  const std::string message = message_of([&] {
    tiny.start("run", broken + Overrides{"--training.steps", "20"})->run();
  });
  CHECK(has(message, "11 consecutive steps had non-finite gradients"));
  CHECK(
      has(message,
          "; go on from step 5: checkpoint.load_step 5, or 4 if the update of step 5 broke the weights; with "
          "it, checkpoint.advance_data_steps leaves out data"));
  CHECK(steps() == "4, 5, 14, 15");
  // Who has done so, and nothing else, would go on from the newest of the branch.
  const Overrides back = broken + Overrides{"--training.steps", "20", "--checkpoint.load_step", "5"};
  CHECK(has(message_of([&] { tiny.start("run", back)->run(); }),
            "checkpoint.load_step 5, which begins anew once the later checkpoints are moved out of " +
                (tiny / "run/checkpoint") + ", or 4 if "));
  CHECK(tiny.start("run", back)->state().consecutive_skips == 10);
  for (const auto& saved : checkpoint::list_steps(tiny / "run/checkpoint"))
    if (saved.step > 5) fs::remove_all(saved.path);
  CHECK(tiny.start("run", back)->state().step == 5);
  // The branch may have saved a step before it broke.
  finish(tiny, "branch", saving + Overrides{"--training.steps", "4"});
  CHECK(has(message_of([&] {
              tiny.start("branch",
                         broken + Overrides{"--training.steps", "20", "--checkpoint.load_step", "3"})
                  ->run();
            }),
            "checkpoint.load_step 4, or 3, which begins anew once the later checkpoints are moved out of " +
                (tiny / "branch/checkpoint") + ", if the update of step 4 broke the weights; with it"));
  // Once steps are not skipped, older ones go as always.
  CHECK(finish(tiny, "run", saving + Overrides{"--training.steps", "8", "--checkpoint.load_step", "4"}, 4)
            .state.skipped_steps == 0);
  CHECK(steps() == "7, 8");
}
