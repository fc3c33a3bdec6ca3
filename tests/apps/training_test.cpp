#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/io/file.h"
#include "core/log.h"
#include "core/parallel_for.h"
#include "parallel/checkpoint/folder.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/tiny_training.h"

// Whole runs of one process on a small text: Trainer with everything it owns.

using namespace ottava;
using namespace ottava::test;
namespace fs = std::filesystem;

namespace {

using Overrides = TinyTraining::Overrides;

Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Runs to the end.
Everything finish(TinyTraining& tiny, const std::string& run, const Overrides& overrides) {
  TinyTraining::Run r = tiny.start(run, overrides);
  CHECK(r->run() == Trainer::End::completed);
  return everything_of(*r.trainer);
}

float* master(Trainer& trainer, int parameter) {
  return trainer.engine().parameters().shard(parameter).master.as<float>();
}

const Overrides kSaving{"--checkpoint.enable", "true", "--checkpoint.interval", "3",
                        "--checkpoint.keep_latest_k", "0", "--checkpoint.last_save_model_only", "false"};

struct Variant {
  const char* name;
  Overrides overrides;
};

}  // namespace

TEST_CASE("a resumed run is bitwise the uninterrupted one") {
  TinyTraining tiny;
  std::ofstream(tiny / "v.txt") << generated_text(12, 7);
  const Overrides bf16{"--training.mixed_precision_param", "bfloat16"};
  const Overrides accumulate{"--training.global_batch_size", "4"};
  const std::vector<Variant> variants{
      {"f32", {}},
      {"bf16, accumulating", bf16 + accumulate},
      {"f32, full recomputation, accumulating",
       accumulate + Overrides{"--activation_checkpoint.mode", "full"}},
      {"bf16, every second block, saving in the background",
       bf16 + Overrides{"--activation_checkpoint.mode", "selective", "--checkpoint.async_mode", "async"}},
      {"bf16, cheap operations, dynamic loss scale",
       bf16 + Overrides{"--activation_checkpoint.mode", "selective",
                        "--activation_checkpoint.selective_ac_option", "op", "--training.loss_scale",
                        "dynamic"}},
      {"bf16 moments, saving in the background",
       bf16 + Overrides{"--optimizer.state_dtype", "bfloat16", "--checkpoint.async_mode",
                        "async_with_pinned_mem"}},
      {"validation, block-causal",
       {"--validation.enable", "true", "--validation.dataset_path", tiny / "v.txt", "--validation.freq", "2",
        "--validation.seq_len", "24", "--validation.local_batch_size", "1", "--model.attn_mask_type",
        "block_causal"}},
  };
  for (const Variant& variant : variants) {
    INFO(variant.name);
    const std::string whole = std::string("whole ") + variant.name,
                      resumed = std::string("resumed ") + variant.name;
    const Everything expected = finish(tiny, whole, variant.overrides);
    // A run that saves computes the same; what is left of its folder is that of a run that died after step 3
    // or 6.
    CHECK((finish(tiny, resumed, variant.overrides + kSaving) == expected));
    const std::vector<double> losses = logged(tiny / whole, "loss_metrics/global_avg_loss"),
                              norms = logged(tiny / whole, "grad_norm"), rates = logged(tiny / whole, "lr"),
                              validation = logged(tiny / whole, "validation_metrics/loss");
    CHECK(losses.size() == 8);
    CHECK(losses[0] == Approx(std::log(2256) + 0.5).margin(0.3));
    for (int saved : {6, 3}) {
      INFO("from step " << saved);
      for (int later = saved + 1; later <= 8; ++later)
        fs::remove_all(tiny / (resumed + "/checkpoint/step-" + std::to_string(later)));
      CHECK((finish(tiny, resumed, variant.overrides + kSaving) == expected));
      CHECK((logged(tiny / resumed, "loss_metrics/global_avg_loss") == losses));
      CHECK((logged(tiny / resumed, "grad_norm") == norms));
      CHECK((logged(tiny / resumed, "lr") == rates));
      CHECK((logged(tiny / resumed, "validation_metrics/loss") == validation));
    }
  }
}

TEST_CASE(
    "runs repeat bitwise; recomputation, saving and validation change nothing; threads change only rounding") {
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
    CHECK_FALSE((finish(tiny, name + " seed", base + Overrides{"--training.seed", "1"}) == expected));
    set_parallel_threads(2);
    finish(tiny, name + " threads", base);
    set_parallel_threads(1);
    const std::vector<double> one = logged(tiny / name, "loss_metrics/global_avg_loss"),
                              two = logged(tiny / (name + " threads"), "loss_metrics/global_avg_loss");
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
  CHECK(run->engine().non_finite_gradients() != "");
  std::copy(weights.begin(), weights.end(), weight);
  run->engine().parameters().refresh_compute_copies();
  CHECK(weight[5] == before);
  CHECK_FALSE(run->step(nullptr).skipped);
  CHECK(run->state().optimizer_step == 2);
  CHECK(run->state().skipped_steps == 1);
  CHECK(run->state().consecutive_skips == 0);
  CHECK(run->engine().non_finite_gradients() == "");
}

TEST_CASE("too many skipped steps in a row end the run, and the count survives a restart") {
  TinyTraining tiny;
  // The gradient of one token times 3e38 leaves FP32's range.
  const Overrides tokens = kSaving + Overrides{"--training.seq_len", "1", "--training.local_batch_size", "1"};
  const Overrides overflowing =
      tokens + Overrides{"--training.loss_scale", "3e38", "--training.max_consecutive_skipped_steps", "4",
                         "--checkpoint.interval", "2"};
  const std::string log_path = tiny / "log.txt";
  log::set_file(log_path);
  auto message = message_of([&] { tiny.start("run", overflowing)->run(); });
  CHECK(has(
      message,
      "[training] 5 consecutive steps had non-finite gradients (training.max_consecutive_skipped_steps 4)"));
  CHECK(has(message, "lower optimizer.lr"));
  const std::string log = read_file(log_path);
  CHECK(has(log, "step 5 was skipped: the gradient norm is not finite"));
  CHECK(has(log, "did not move; rank 0: loss finite in its only micro-batch, gradients not finite in "));
  CHECK(has(log, "WARNING"));
  CHECK(checkpoint::list_steps(tiny / "run/checkpoint").back().step == 4);
  TinyTraining::Run again = tiny.start("run", overflowing);
  CHECK(again->state().skipped_steps == 4);
  CHECK(again->state().consecutive_skips == 4);
  CHECK(again->state().optimizer_step == 0);
  CHECK(has(message_of([&] { again->run(); }), "5 consecutive steps"));
  // Without the overflow the same run goes on.
  TinyTraining::Run cured =
      tiny.start("run", tokens + Overrides{"--training.max_consecutive_skipped_steps", "0"});
  CHECK(cured->run() == Trainer::End::completed);
  CHECK(cured->state().optimizer_step == 4);
  CHECK(cured->state().skipped_steps == 4);
  CHECK(has(
      message_of([&] {
        tiny.start("none", overflowing + Overrides{"--training.max_consecutive_skipped_steps", "0"})->run();
      }),
      "1 consecutive steps"));
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
      const Tensor& m = parameters.shard(static_cast<int>(p)).exp_avg;
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
      const double w = before[p][static_cast<size_t>(e)], m = s.exp_avg.as<float>()[e] / 0.1,
                   v = s.exp_avg_sq.as<float>()[e] / 0.05;
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
}

TEST_CASE("the validation loss is that of the text's windows in order") {
  TinyTraining tiny;
  std::ofstream(tiny / "v.txt") << generated_text(12, 7);
  const Overrides validating{"--validation.enable",
                             "true",
                             "--validation.dataset_path",
                             tiny / "v.txt",
                             "--validation.freq",
                             "4",
                             "--validation.seq_len",
                             "40",
                             "--validation.local_batch_size",
                             "1",
                             "--training.seed",
                             "3"};
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
  BatchSource source({.loader = options});
  source.read(10000);  // far beyond the end: now the number of windows is known
  double sum = 0, tokens = 0, first_three = 0;
  for (int64_t i = 0; i < source.loader().samples_per_epoch().value(); ++i) {
    sum += run->engine().validate(source.read(i));
    tokens += static_cast<double>(source.valid_tokens());
    if (i == 2) first_three = sum / tokens;
  }
  CHECK(tokens > 400);
  CHECK(all[2] == sum / tokens);
  CHECK(three[2] == first_three);
}

TEST_CASE("text too short for one validation batch is refused, not taken for a loss of zero") {
  TinyTraining tiny;
  std::ofstream(tiny / "v.txt") << generated_text(1, 7);
  const Overrides validating{"--validation.enable",  "true", "--validation.dataset_path",     tiny / "v.txt",
                             "--validation.seq_len", "32",   "--validation.local_batch_size", "64"};
  // Before the first step, so that nothing is trained in vain.
  const std::string message = message_of([&] { tiny.start("few", validating); });
  CHECK(has(message, "[validation] '" + (tiny / "v.txt") +
                         "' make fewer than the 64 sequences of 32 tokens that one step reads"));
  CHECK_FALSE(fs::exists(tiny / "few/metrics.jsonl"));
  // A number of steps to validate for starts the text again.
  CHECK(message_of([&] {
          tiny.start("again", validating + Overrides{"--validation.steps", "1"});
        }) == "no error");
}

TEST_CASE("a checkpoint starts another run, bit for bit, as weights or as a whole run") {
  TinyTraining tiny;
  const Everything trained = finish(tiny, "first", kSaving);
  const std::string saved = tiny / "first/checkpoint/step-8";
  const size_t per_parameter = 4;  // master, exp_avg, exp_avg_sq, compute
  TinyTraining::Run weights = tiny.start("weights", {"--checkpoint.initial_load_path", saved});
  Everything loaded = everything_of(*weights.trainer);
  CHECK(loaded.state.step == 0);
  for (size_t i = 0; i < loaded.tensors.size(); ++i) {
    const bool is_moment = i % per_parameter == 1 || i % per_parameter == 2;
    if (!is_moment) CHECK((loaded.tensors[i] == trained.tensors[i]));
    if (is_moment) CHECK((loaded.tensors[i] == std::vector<uint8_t>(loaded.tensors[i].size(), 0)));
  }
  TinyTraining::Run whole = tiny.start(
      "whole", {"--checkpoint.initial_load_path", saved, "--checkpoint.initial_load_model_only", "false"});
  CHECK((everything_of(*whole.trainer) == trained));

  // The folder is a Hugging Face model: its config.json gives the shape.
  Config c = tiny.config("hf", {"--checkpoint.initial_load_path", saved});
  c.model = {};
  c.model.flavor = "hf";
  c.model.hf_assets_path = saved;
  RankGroups ranks = solo_rank_groups();
  Trainer from_config(resolve_experiment(c, load_tokenizer(c), 1), ranks, {DeviceType::cpu, 0}, nullptr);
  CHECK((everything_of(from_config).tensors == loaded.tensors));

  // An export in bf16 holds the weights rounded.
  finish(tiny, "export", {"--checkpoint.enable", "true", "--checkpoint.export_dtype", "bfloat16"});
  TinyTraining::Run rounded =
      tiny.start("rounded", {"--checkpoint.initial_load_path", tiny / "export/checkpoint/step-8"});
  const auto* exact = reinterpret_cast<const float*>(trained.tensors[0].data());
  for (size_t i = 0; i < 100; ++i)
    CHECK(master(*rounded.trainer, 0)[i] == static_cast<float>(bf16(exact[i])));
}

TEST_CASE("exclude_from_loading starts exactly the named part afresh") {
  TinyTraining tiny;
  const Overrides dynamic = kSaving + Overrides{"--training.loss_scale", "dynamic"};
  finish(tiny, "run", dynamic);
  const Everything saved = everything_of(*tiny.start("run", dynamic).trainer);
  auto without = [&](const char* part) {
    return everything_of(
        *tiny.start("run", dynamic + Overrides{"--checkpoint.exclude_from_loading", part}).trainer);
  };
  CHECK(saved.state.loss_scale->good_steps == 8);

  Everything optimizer = without("optimizer");
  CHECK(optimizer.state.optimizer_step == 0);
  CHECK(optimizer.state.loss_scale->good_steps == 0);
  CHECK(optimizer.tensors[0] == saved.tensors[0]);
  CHECK(optimizer.tensors[1] == std::vector<uint8_t>(optimizer.tensors[1].size(), 0));
  optimizer.state.optimizer_step = 8;
  optimizer.state.loss_scale = saved.state.loss_scale;
  CHECK((optimizer.state == saved.state));

  Everything schedule = without("lr_scheduler");
  CHECK(schedule.state.schedule_step == 0);
  schedule.state.schedule_step = 8;
  CHECK((schedule == saved));

  Everything data = without("dataloader");
  CHECK(data.state.data_position == 0);
  data.state.data_position = saved.state.data_position;
  CHECK((data == saved));

  Everything counts = without("train_state");
  CHECK(counts.state.step == 0);
  CHECK(counts.state.tokens_seen == 0);
  counts.state.step = 8;
  counts.state.tokens_seen = saved.state.tokens_seen;
  CHECK((counts == saved));

  CHECK(has(message_of([&] { without("model"); }),
            "model is refused: without its weights a checkpoint continues nothing"));
}

TEST_CASE("keep_latest_k keeps the newest, a broken checkpoint is passed over by name") {
  TinyTraining tiny;
  const Overrides saving =
      kSaving + Overrides{"--checkpoint.interval", "2", "--checkpoint.keep_latest_k", "2"};
  const Everything expected = finish(tiny, "run", saving);
  std::vector<int64_t> steps;
  for (const checkpoint::SavedStep& s : checkpoint::list_steps(tiny / "run/checkpoint"))
    steps.push_back(s.step);
  CHECK((steps == std::vector<int64_t>{6, 8}));
  const std::string weights = tiny / "run/checkpoint/step-8/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  const std::string log_path = tiny / "log.txt";
  log::set_file(log_path);
  TinyTraining::Run run = tiny.start("run", saving);
  CHECK(run->state().step == 6);
  CHECK(has(read_file(log_path), "step-8 is broken and skipped"));
  run->run();
  CHECK((everything_of(*run.trainer) == expected));
  CHECK(has(message_of([&] {
              tiny.start("run", saving + Overrides{"--checkpoint.load_step", "5"});
            }),
            "step-5 does not exist"));
  CHECK(tiny.start("run", saving + Overrides{"--checkpoint.load_step", "6"})->state().step == 6);
}
