#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/log.h"
#include "core/stopwatch.h"
#include "core/text/listed.h"
#include "core/threads/parallel_for.h"
#include "models/llama/llama_parameters.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

// What a run computes: its losses, gradients and updates, and the losses of validation.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;
namespace fs = std::filesystem;

TEST_CASE(
    "runs repeat bitwise; recomputation, saving and validation change nothing; threads change only "
    "rounding") {
  TinyTraining tiny;
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Overrides base{"--training.mixed_precision_param", dtype};
    const std::string name(dtype);
    const Everything expected = finish(tiny, name, base);
    CHECK((finish(tiny, name + " again", base) == expected));
    CHECK(
        (finish(tiny, name + " full", base + Overrides{"--activation_checkpoint.mode", "full"}) == expected));
    CHECK((finish(tiny, name + " op",
                  base + Overrides{"--activation_checkpoint.mode", "selective",
                                   "--activation_checkpoint.selective_ac_option", "op"}) == expected));
    CHECK((finish(tiny, name + " validated",
                  base + Overrides{"--validation.enable", "true", "--validation.dataset_path",
                                   tiny.text_path(), "--validation.freq", "1", "--validation.steps", "1",
                                   "--validation.seq_len", "48"}) == expected));
    CHECK(logged(tiny / (name + " validated"), "validation_metrics/loss").size() == 8);
    CHECK((finish(tiny, name + " saved", base + kSaving) == expected));
    CHECK(fs::exists(tiny / (name + " saved/checkpoint/step-3")));
    CHECK_FALSE(
        (finish(tiny, name + " seed", base + Overrides{"--training.seed", "1"}).tensors == expected.tensors));
    set_parallel_threads(2);
    finish(tiny, name + " threads", base);
    set_parallel_threads(1);
    const std::vector<double> one = logged(tiny / name, "loss_metrics/global_avg_loss"),
                              two = logged(tiny / (name + " threads"), "loss_metrics/global_avg_loss");
    REQUIRE(one.size() == 8);
    REQUIRE(two.size() == 8);
    for (size_t i = 0; i < one.size(); ++i)
      CHECK(two[i] == Approx(one[i]).epsilon(name == "float32" ? 1e-6 : 1e-3));
  }
}

TEST_CASE("accumulating micro-batches is the larger batch") {
  TinyTraining tiny;
  finish(tiny, "whole", {"--training.local_batch_size", "4"});
  finish(tiny, "parts", {"--training.local_batch_size", "1", "--training.global_batch_size", "4"});
  const std::vector<double> whole = logged(tiny / "whole", "loss_metrics/global_avg_loss"),
                            parts = logged(tiny / "parts", "loss_metrics/global_avg_loss");
  REQUIRE(whole.size() == 8);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(parts[i] == Approx(whole[i]).epsilon(1e-5));
  CHECK((logged(tiny / "whole", "n_tokens_seen") == logged(tiny / "parts", "n_tokens_seen")));
  CHECK(logged(tiny / "whole", "n_tokens_seen").back() == 8 * 4 * 32);
}

TEST_CASE("tokens of a step that the host has no memory for are refused before any is read") {
  TinyTraining tiny;
  const Overrides large{"--training.local_batch_size", "32768", "--training.seq_len", "32768"};
  CHECK_THAT(
      message_of([&] {
        tiny.start("training", large + Overrides{"--training.global_batch_size", "1073741824"});
      }),
      StartsWith("[memory] the tokens of 1073741824 sequences of 32768 tokens need 262152.00 GiB of host "
                 "memory, but only ") &&
          EndsWith(" GiB are free for this rank: lower training.global_batch_size, "
                   "training.local_batch_size or training.seq_len, or use more data-parallel ranks"));
  const TinyTraining::Run run = tiny.start("validation");
  Experiment e = run.trainer->experiment();
  e.config.validation.enable = true;
  e.config.validation.datasets.resize(65536);  // 8 GiB each
  e.shape.validation_batch = e.shape.validation_sequence = 32768;
  const RankGroups solo = solo_rank_groups();
  CHECK_THAT(message_of([&] { open_validation_data(e, solo); }),
             StartsWith("[memory] the tokens of 2147483648 sequences of 32768 tokens need 524304.00 GiB") &&
                 EndsWith(" lower validation.local_batch_size or validation.seq_len"));
}

TEST_CASE("loss scaling leaves the FP32 curve as it is") {
  TinyTraining tiny;
  finish(tiny, "none", {});
  const std::vector<double> expected = logged(tiny / "none", "loss_metrics/global_avg_loss"),
                            norms = logged(tiny / "none", "grad_norm");
  for (const char* scale : {"1024", "1000", "dynamic"}) {
    INFO(scale);
    finish(tiny, scale, {"--training.loss_scale", scale});
    const std::vector<double> losses = logged(tiny / scale, "loss_metrics/global_avg_loss"),
                              scaled = logged(tiny / scale, "grad_norm");
    REQUIRE(losses.size() == expected.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      CHECK(losses[i] == Approx(expected[i]).epsilon(1e-5));
      CHECK(scaled[i] == Approx(norms[i]).epsilon(1e-4));
    }
  }
  CHECK(logged(tiny / "1000", "loss_scale")[0] == 1000);
  CHECK(logged(tiny / "dynamic", "loss_scale")[0] == 65536);
}

TEST_CASE("the gradient is clipped to max_norm, the norm that is logged is the one before") {
  TinyTraining tiny;
  double before[2] = {0, 0};
  int i = 0;
  for (double max_norm : {1e-3, 1e9}) {
    TinyTraining::Run run =
        tiny.start("run" + std::to_string(i), {"--training.max_norm", fmt::format("{}", max_norm)});
    const double norm = before[i++] = run->step(nullptr).grad_norm;
    // After one step the mean of gradients is (1 - beta1) times the clipped gradient.
    double sum = 0;
    Fsdp& parameters = run->engine().parameters();
    for (size_t p = 0; p < parameters.specs().size(); ++p) {
      const Tensor& m = parameters.shard(static_cast<int>(p)).moments[Moment::exp_avg];
      for (int64_t e = 0; e < m.numel(); ++e) sum += std::pow(m.as<float>()[e] / 0.1, 2);
    }
    CHECK(std::sqrt(sum) == Approx(std::min(norm, max_norm)).epsilon(1e-4));
  }
  CHECK(before[0] == before[1]);
  CHECK(before[0] > 1e-3);
}

TEST_CASE("param_groups decide decay and learning rate by name, the first match first") {
  TinyTraining tiny;
  Config c = tiny.config("run", {"--optimizer.lr", "0.01", "--optimizer.weight_decay", "0.2",
                                 "--lr_scheduler.warmup_steps", "0"});
  c.optimizer.param_groups = {{.match = "*norm*", .weight_decay = 0.0},
                              {.match = "output*", .weight_decay = std::nullopt, .lr_factor = 0.5},
                              {.match = "*", .weight_decay = 0.1}};
  RankGroups ranks = solo_rank_groups();
  Trainer trainer(resolve_experiment(c, load_tokenizer(c), 1), ranks, {DeviceType::cpu, 0}, nullptr);
  Fsdp& parameters = trainer.engine().parameters();
  const size_t count = parameters.specs().size();
  std::vector<std::vector<float>> before;
  for (size_t p = 0; p < count; ++p)
    before.emplace_back(
        master(trainer, static_cast<int>(p)),
        master(trainer, static_cast<int>(p)) + parameters.shard(static_cast<int>(p)).master.numel());
  trainer.step(nullptr);
  int norms = 0, outputs = 0;
  for (size_t p = 0; p < count; ++p) {
    const std::string& name = parameters.specs()[p].name;
    INFO(name);
    const bool is_norm = has(name, "norm"), is_output = name.starts_with("output");
    norms += is_norm;
    outputs += is_output;
    const double decay = is_norm ? 0 : is_output ? 0.2 : 0.1, lr = 0.01 * (is_output ? 0.5 : 1);
    const ParameterShard& s = parameters.shard(static_cast<int>(p));
    double worst = 0;
    for (int64_t e = 0; e < s.master.numel(); ++e) {
      const double w = before[p][static_cast<size_t>(e)], m = s.moments[Moment::exp_avg].as<float>()[e] / 0.1,
                   v = s.moments[Moment::exp_avg_sq].as<float>()[e] / 0.05;
      const double expected = w - lr * (m / (std::sqrt(v) + 1e-8) + decay * w);
      worst = std::max(worst, std::abs(expected - s.master.as<float>()[e]));
    }
    CHECK(worst < 2e-6);
  }
  CHECK(norms == 5);
  CHECK(outputs == 1);
  c.optimizer.param_groups = {{.match = "*nrom*", .weight_decay = 0.0}};
  CHECK(has(message_of([&] { resolve_experiment(c, load_tokenizer(c), 1); }),
            "param_groups entry 1 matches no parameter: '*nrom*'"));
  // What earlier entries leave nothing of, by its name here or in checkpoints.
  for (const char* match : {"*norm.weight", "*attention_norm"}) {
    c.optimizer.param_groups = {{.match = "*attention_norm"},
                                {.match = "*norm*", .weight_decay = 0.0},
                                {.match = match, .weight_decay = 0.1}};
    const bool is_one = std::string_view(match) == "*attention_norm";
    CHECK_THAT(message_of([&] { resolve_experiment(c, load_tokenizer(c), 1); }),
               Contains(fmt::format("[optimizer] param_groups entry 3 has no effect: {} before it {} every "
                                    "parameter that '{}' matches, and the first match applies: put it before "
                                    "{}, or remove it",
                                    is_one ? "entry 1" : "entries 1, 2", is_one ? "matches" : "match", match,
                                    is_one ? "that" : "those")));
  }
}

TEST_CASE(
    "names of checkpoints choose parameters of param_groups, and those that train as one only together") {
  TinyTraining tiny;
  Config c = tiny.config("run");
  const auto factors = [&](const std::string& match) {
    c.optimizer.param_groups = {{.match = match, .lr_factor = 0}};
    const Experiment e = resolve_experiment(c, load_tokenizer(c), 1);
    const std::vector<ParameterSpec> specs = llama_parameters(e.shape.model).specs;
    std::string chosen;
    for (size_t p = 0; p < specs.size(); ++p)
      if (e.shape.groups[p].lr_factor == 0) add_item(chosen, specs[p].name);
    return chosen;
  };
  CHECK(factors("model.layers.1.mlp.down_proj.weight") == "layers.1.feed_forward.w2");
  CHECK(factors("model.embed_tokens.weight") == "tok_embeddings");
  CHECK(factors("model.layers.0.self_attn.?_proj.weight") ==
        "layers.0.attention.wqkv, layers.0.attention.wo");
  CHECK(factors("model.layers.0.mlp.*") == "layers.0.feed_forward.w13, layers.0.feed_forward.w2");
  for (const auto& [match, other] : {std::pair{"*q_proj*", "model.layers.0.self_attn.k_proj.weight"},
                                     {"*v_proj*", "model.layers.0.self_attn.q_proj.weight"},
                                     {"*gate_proj*", "model.layers.0.mlp.up_proj.weight"},
                                     {"*up_proj*", "model.layers.0.mlp.gate_proj.weight"}}) {
    CHECK_THAT(
        message_of([&] { factors(match); }),
        Contains("[optimizer] param_groups entry 1 matches model.layers.0.") &&
            Contains(std::string(" but not ") + other + ", although both are trained together as layers.0."));
  }
}

TEST_CASE("the validation loss is that of the text's windows in order") {
  TinyTraining tiny;
  std::ofstream(tiny / "v.txt") << generated_text(12, 7);
  const Overrides validating = words(
                                   "--validation.enable true --validation.freq 4 --validation.seq_len 40 "
                                   "--validation.local_batch_size 1 --training.seed 3") +
                               Overrides{"--validation.dataset_path", tiny / "v.txt"};
  finish(tiny, "all", validating);
  finish(tiny, "three", validating + Overrides{"--validation.steps", "3"});
  const std::vector<double> all = logged(tiny / "all", "validation_metrics/loss"),
                            three = logged(tiny / "three", "validation_metrics/loss");
  REQUIRE(all.size() == 3);  // steps 1, 4, 8
  REQUIRE(three.size() == 3);
  CHECK(all[2] < all[0]);
  CHECK(all[0] != three[0]);
  // By hand: the engine that trained, over the windows of the same text.
  TinyTraining::Run run = tiny.start("hand", validating);
  for (int i = 0; i < 8; ++i) run->step(nullptr);
  data::LoaderOptions options;
  options.sources = {tiny / "v.txt"};
  options.encoder = data::make_text_encoder(run->experiment().tokenizer, {.bos = true, .eos = true});
  options.seq_len = 40;
  options.order = data::Order::sequential;
  BatchSource source(data::MixedLoader(options), {});
  source.read(10000);  // far beyond the end: now the number of windows is known
  double sum = 0, tokens = 0, first_three = 0;
  for (int64_t i = 0; i < source.loader().sources()[0].loader->samples_per_epoch().value(); ++i) {
    sum += run->engine().validate(source.read(i));
    tokens += static_cast<double>(source.valid_tokens());
    if (i == 2) first_three = sum / tokens;
  }
  CHECK(tokens > 400);
  CHECK(all[2] == sum / tokens);
  CHECK(three[2] == first_three);
}

TEST_CASE(
    "every window of the validation text counts once, however many fit a batch and on any number of ranks") {
  TinyTraining tiny;
  std::ofstream lines(tiny / "v.jsonl");
  const auto tokenizer = load_tokenizer(tiny.config("run"));
  constexpr int64_t kSequence = 32, kWindows = 10;
  // Ten windows and some tokens more.
  std::string text = generated_text(100, 7);
  std::vector<int32_t> ids = tokenizer->encode(text);
  ids.resize(kWindows * (kSequence + 1) + 5);
  std::string kept;
  for (int32_t id : ids) kept += tokenizer->token_bytes(id);
  lines << Json(Json::Object{{"text", kept}}).dump() << "\n" << std::flush;
  const Overrides validating{"--validation.enable",  "true", "--validation.dataset_path", tiny / "v.jsonl",
                             "--validation.seq_len", "32",   "--training.steps",          "1"};
  std::vector<double> losses;
  for (const char* batch : {"1", "8", "64"}) {
    finish(tiny, batch, validating + Overrides{"--validation.local_batch_size", batch});
    losses.push_back(logged(tiny / batch, "validation_metrics/loss").at(0));
  }
  CHECK(losses[1] == Approx(losses[0]).epsilon(1e-6));
  CHECK(losses[2] == Approx(losses[0]).epsilon(1e-6));

  data::LoaderOptions options{.sources = {tiny / "v.jsonl"},
                              .encoder = data::make_text_encoder(tokenizer, {}),
                              .seq_len = kSequence,
                              .order = data::Order::sequential};
  for (const int ranks : {1, 2}) {
    int64_t valid = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchSource source(data::MixedLoader(options),
                         {.batch = 8 / ranks, .data_rank = rank, .data_size = ranks});
      for (int64_t first : {0, 8}) {
        source.read(first);
        const HostTokens& tokens = source.leave_out_from(kWindows);
        valid += source.valid_tokens();
        CHECK(std::ranges::count(tokens.targets, data::kNoTarget) ==
              std::ssize(tokens.targets) - source.valid_tokens());
      }
      CHECK(source.loader().sources()[0].loader->samples_per_epoch() == kWindows);
    }
    CHECK(valid == kWindows * kSequence);
  }
}

TEST_CASE("what validation leaves out of its data is counted in the log, once for all validations") {
  TinyTraining tiny;
  std::ofstream lines(tiny / "v.jsonl");
  lines << "no json\n{\"text\": 5}\n";
  for (uint32_t i = 0; i < 20; ++i)
    lines << Json(Json::Object{{"text", generated_text(10, i)}}).dump() << "\n" << std::flush;
  const CapturedOutput log;
  finish(tiny, "run",
         {"--validation.enable", "true", "--validation.datasets",
          "[{name: held-out, path: " + (tiny / "v.jsonl") + "}]", "--validation.seq_len", "32",
          "--validation.freq", "1", "--training.steps", "3", "--training.bad_records", "skip"});
  const std::string text = log.text(), warning =
                                           "2 bad records of the validation data held-out left out so far "
                                           "(training.bad_records: skip); the first: '" +
                                           (tiny / "v.jsonl") + "' line 1";
  CHECK_THAT(text, Contains(warning));
  CHECK(text.find(warning) == text.rfind(warning));
}

TEST_CASE("validation text without a window is refused before the first step") {
  TinyTraining tiny;
  std::ofstream(tiny / "v.txt") << "too short";
  const Overrides validating{"--validation.enable",  "true", "--validation.dataset_path", tiny / "v.txt",
                             "--validation.seq_len", "32"};
  CHECK_THAT(message_of([&] { tiny.start("few", validating); }),
             Contains("the dataset is too small: '" + (tiny / "v.txt") + "'") &&
                 Contains("seq_len + 1 = 33 tokens; use more text or a smaller validation.seq_len"));
  CHECK_FALSE(fs::exists(tiny / "few/metrics.jsonl"));
}

TEST_CASE("the log names the data of training and of validation, each read by its own threads") {
  TinyTraining tiny;
  const CapturedOutput log;
  log::set_level(log::Level::info);
  const TinyTraining::Run run = tiny.start(
      "run",
      {"--training.dataset", "mine", "--training.dataloader.num_workers", "2", "--validation.enable", "true",
       "--validation.dataset", "other", "--validation.dataset_path", tiny.text_path(), "--validation.seq_len",
       "48", "--validation.dataloader.num_workers", "3", "--validation.dataloader.prefetch_factor", "4"});
  log::set_level(log::Level::warning);
  const std::string text = log.text();
  const auto line = [&](const char* begin) {
    const size_t at = text.find(begin);
    return at == std::string::npos ? std::string() : text.substr(at, text.find('\n', at) - at);
  };
  CHECK_THAT(line(" Data: "), StartsWith(" Data: mine: 1 file, ") && Contains("; 2 threads, "));
  CHECK_THAT(line("Validation data: "),
             StartsWith("Validation data: other: 1 file, ") && EndsWith("; 3 threads, 4 segments ahead"));
}

TEST_CASE("the time of a save is no part of the time of the steps that are logged") {
  TinyTraining tiny;
  const CapturedOutput log;
  log::set_level(log::Level::info);
  TinyTraining::Run run = tiny.start("run", kSaving + Overrides{"--checkpoint.interval", "1"});
  const Stopwatch watch;
  run->run();
  double left = watch.seconds();
  log::set_level(log::Level::warning);
  for (const double seconds : logged(tiny / "run", "time_metrics/end_to_end(s)")) left -= seconds;
  const std::string text = log.text(), saved = " MB in ";
  int saves = 0;
  for (size_t at = 0; (at = text.find(saved, at)) != std::string::npos; ++saves) {
    at += saved.size();
    left -= std::stod(text.substr(at, 8));
  }
  CHECK(saves == 8);
  CHECK(left >= -0.005 * saves);  // which are told in hundredths of a second
}

TEST_CASE("a run whose events find no room says so once, and trains") {
  TinyTraining tiny;
  const Overrides saving = kSaving + Overrides{"--training.steps", "3"};
  finish(tiny, "run", saving);
  const std::string events = tiny / "run/events.jsonl";
  fs::remove(events);
  fs::create_symlink("/dev/full", events);
  const CapturedOutput log;
  CHECK(finish(tiny, "run", kSaving).state.step == 8);
  const std::string text = log.text(), warning = "events of the run are missing from their file";
  CHECK_THAT(text, Contains("WARNING") && Contains(events + ": No space left on device"));
  CHECK(text.find(warning) == text.rfind(warning));
}
