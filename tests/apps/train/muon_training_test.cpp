#include <cmath>
#include <filesystem>
#include <map>

#include "apps/report/optimizer_text.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

// Whole runs with Muon.

using namespace ottava;
using namespace ottava::test;

namespace {

const Overrides kMuon{"--optimizer.name", "Muon"};

}  // namespace

TEST_CASE("Muon has matrices of blocks, AdamW everything else, and groups may say otherwise") {
  TinyTraining tiny;
  Config c = tiny.config("run", kMuon);
  auto rules = [&] { return resolve_experiment(c, load_tokenizer(c), 1).shape; };
  const TrainingShape shape = rules();
  const std::vector<ParameterSpec> specs = parameter_table(shape).specs;
  for (const ParameterSpec& spec : specs) {
    INFO(spec.name);
    CHECK((spec.rule == UpdateRule::muon) == (spec.role == ParameterRole::linear));
  }
  CHECK(shape.muon.hyper.coefficients == std::array{3.4445f, -4.7750f, 2.0315f});
  c.optimizer.param_groups = {{.match = "*w2", .lr_factor = 0.5, .optimizer_name = UpdateRule::adamw},
                              {.match = "output", .optimizer_name = UpdateRule::muon}};
  for (const ParameterSpec& spec : parameter_table(rules()).specs) {
    INFO(spec.name);
    const bool expected =
        spec.name == "output" || (spec.role == ParameterRole::linear && !spec.name.ends_with("w2"));
    CHECK((spec.rule == UpdateRule::muon) == expected);
  }
  c.optimizer.param_groups = {{.match = "*ffn_norm", .optimizer_name = UpdateRule::muon}};
  CHECK(has(message_of(rules),
            "[optimizer] param_groups entry 1 assigns layers.0.ffn_norm to Muon, which is for matrices, but "
            "it is a vector of"));
  CHECK(has(message_of([&] {
              tiny.config("run", kMuon + Overrides{"--optimizer.ns_coefficients", "1,x"});
            }),
            "optimizer.ns_coefficients: expected a list of three numbers, got [\"1\", \"x\"]"));
  CHECK(has(message_of([&] { tiny.config("run", {"--optimizer.name", "Mooun"}); }), "Muon"));
}

TEST_CASE("Muon learns, says what it does, and a resumed run is bitwise the uninterrupted one") {
  TinyTraining tiny;
  const CapturedOutput captured;
  const Overrides bf16 =
      kMuon + Overrides{"--training.mixed_precision_param", "bfloat16", "--optimizer.lr", "0.02",
                        "--lr_scheduler.warmup_steps",      "0"};
  CHECK(optimizer_text(tiny.start("text", bf16)->experiment()) ==
        "Muon for 14 matrices of 15,360 parameters (bf16, 5 steps of Newton-Schulz); AdamW for 144,544");
  const Everything expected = finish(tiny, "whole", bf16);
  const std::vector<double> losses = logged(tiny / "whole", "loss_metrics/global_avg_loss");
  CHECK(losses.back() < losses.front() - 0.05);
  CHECK((finish(tiny, "resumed", bf16 + kSaving) == expected));
  for (int later : {6, 7, 8})
    std::filesystem::remove_all(tiny / ("resumed/checkpoint/step-" + std::to_string(later)));
  CHECK((finish(tiny, "resumed", bf16 + kSaving, 3) == expected));
}

TEST_CASE("weights that are trained further with Muon are warned of unless Muon has trained them") {
  TinyTraining tiny;
  const Overrides export_only{"--checkpoint.enable", "true", "--checkpoint.last_save_model_only", "true"};
  finish(tiny, "adamw", export_only);
  finish(tiny, "muon", export_only + kMuon);
  const auto is_warned = [&](const char* from) {
    const CapturedOutput captured;
    tiny.start("further", kMuon + Overrides{"--checkpoint.initial_load_path", tiny / from});
    return has(captured.text(), "with Muon: a model that AdamW trained gains little from Muon");
  };
  CHECK(is_warned("adamw"));
  CHECK_FALSE(is_warned("muon"));
  std::filesystem::remove(tiny /
                          "muon/checkpoint/step-8/ottava_config.yaml");  // as of a model from elsewhere
  CHECK(is_warned("muon/checkpoint/step-8"));
}

TEST_CASE("a run that goes on with another optimizer says so, and its new moments begin at zero") {
  TinyTraining tiny;
  finish(tiny, "run", kSaving);
  for (const char* name : {"Muon", "AdamW"}) {
    INFO(name);
    const CapturedOutput captured;
    TinyTraining::Run run = tiny.start(
        "run",
        kSaving + Overrides{"--optimizer.name", name, "--training.steps", name[0] == 'M' ? "11" : "14"});
    const bool to_muon = name[0] == 'M';
    CHECK(has(captured.text(), to_muon
                                   ? "trained with AdamW there and with Muon here begin with zero momentum"
                                   : "trained with Muon there and with AdamW here begin with zero moments"));
    const Fsdp& parameters = run->engine().parameters();
    for (size_t p = 0; p < parameters.specs().size(); ++p) {
      const ParameterShard& s = parameters.shard(static_cast<int>(p));
      const bool changed = parameters.specs()[p].role == ParameterRole::linear;
      const Tensor& moment = s.moments[moments_of(parameters.specs()[p].rule).front().moment];
      bool is_zero = true;
      for (int64_t e = 0; e < moment.numel(); ++e) is_zero = is_zero && moment.as<float>()[e] == 0;
      INFO(parameters.specs()[p].name);
      CHECK(is_zero == changed);
    }
    run->run();
  }
}

TEST_CASE(
    "matrices that AdamW takes over from Muon begin as in a new run: the first update is the learning rate") {
  TinyTraining tiny;
  const CapturedOutput captured;
  const Overrides saving =
      kSaving + words(
                    "--lr_scheduler.total_steps 40 --lr_scheduler.warmup_steps 0 --optimizer.beta2 0.999 "
                    "--optimizer.weight_decay 0 --training.mixed_precision_param float32");
  const auto until = [](const char* steps) { return Overrides{"--training.steps", steps}; };
  finish(tiny, "run", saving + kMuon + until("6"));
  const auto masters = [](Trainer& trainer) {
    std::map<std::string, std::vector<float>> out;
    const Fsdp& parameters = trainer.engine().parameters();
    for (size_t p = 0; p < parameters.specs().size(); ++p) {
      const Tensor& m = parameters.shard(static_cast<int>(p)).master;
      out[parameters.specs()[p].name] = {m.as<float>(), m.as<float>() + m.numel()};
    }
    return out;
  };
  {
    TinyTraining::Run run = tiny.start("run", saving + until("7"));
    const auto before = masters(*run.trainer);
    run->run();
    const auto after = masters(*run.trainer);
    const double rate = logged(tiny / "run", "lr").back();
    for (const ParameterSpec& spec : run->engine().parameters().specs()) {
      if (spec.role != ParameterRole::linear) continue;
      INFO(spec.name);
      CHECK(run->state().moments_begun.at(spec.name) == 6);
      double largest = 0;
      for (size_t i = 0; i < before.at(spec.name).size(); ++i)
        largest = std::max<double>(largest, std::abs(after.at(spec.name)[i] - before.at(spec.name)[i]));
      CHECK(largest == Approx(rate).epsilon(1e-3));
    }
    CHECK_FALSE(run->state().moments_begun.contains("output"));
  }
  // Stopped and continued, the run is the uninterrupted one. Muon needs no such entries and drops them.
  const Everything expected = finish(tiny, "run", saving + until("12"));
  CHECK_FALSE(expected.state.moments_begun.empty());
  std::filesystem::remove_all(tiny / "run/checkpoint/step-12");
  CHECK((finish(tiny, "run", saving + until("12"), 9) == expected));
  const Everything muon = finish(tiny, "run", saving + kMuon + until("15"));
  CHECK(muon.state.moments_begun.empty());
}
