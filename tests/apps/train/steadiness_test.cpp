#include <cmath>
#include <filesystem>

#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"

// What keeps a run steady: z-loss, skipping of spikes.

using namespace ottava;
using namespace ottava::test;

TEST_CASE("the z-loss is logged by itself, and a run without it logs none") {
  TinyTraining tiny;
  const CapturedOutput captured;
  tiny.start("with", {"--training.z_loss_weight", "1e-3"})->run();
  tiny.start("without")->run();
  const std::vector<double> z = logged(tiny / "with", "loss_metrics/global_avg_z_loss"),
                            with = logged(tiny / "with", "loss_metrics/global_avg_loss"),
                            without = logged(tiny / "without", "loss_metrics/global_avg_loss");
  REQUIRE(z.size() == with.size());
  // lse of initial logits, which are near 0.
  const double lse = std::sqrt(z[0] / 1e-3);
  CHECK(lse > std::log(2256.0));
  CHECK(lse < std::log(2256.0) + 1);
  CHECK(with[0] == without[0]);
  CHECK(with.back() != without.back());
  for (const Json& line : logged_lines(tiny / "without"))
    CHECK_FALSE(line.find("loss_metrics/global_avg_z_loss"));
}

TEST_CASE(
    "a step far above those before is skipped, counted by itself, and moves nothing but data and schedule") {
  TinyTraining tiny;
  const Overrides rule = words(
      "--training.skip_spikes.window 8 --training.skip_spikes.sigma 6 --training.steps 40 "
      "--training.loss_scale dynamic");
  TinyTraining::Run run = tiny.start("run", rule);
  for (int i = 0; i < 10; ++i) REQUIRE_FALSE(run->step(nullptr).skipped);
  float* weights = master(*run.trainer, 0);
  const int64_t count = run->engine().parameters().shard(0).master.numel();
  const std::vector<float> before(weights, weights + count);
  // Embeddings that have nothing to do with this text: the loss leaps.
  for (int64_t i = 0; i < count; ++i) weights[i] = i % 2 ? 50.0f : -30.0f * static_cast<float>(i % 7);
  run->engine().parameters().refresh_compute_copies();
  const Everything spoiled = everything_of(*run.trainer);
  const StepOutputs out = run->step(nullptr);
  CHECK(out.skipped);
  CHECK((out.why == kLossSpike || out.why == kNormSpike));
  const Everything after = everything_of(*run.trainer);
  CHECK((after.tensors == spoiled.tensors));
  CHECK(after.state.step == 11);
  CHECK(after.state.optimizer_step == 10);
  CHECK(after.state.skipped_spikes == 1);
  CHECK(after.state.skipped_steps == 0);
  CHECK(after.state.consecutive_skips == 0);
  CHECK(after.state.loss_scale->scale == LossScale::kInitial);
  CHECK(after.state.spikes.known == 11);
}

TEST_CASE("a resumed run skips what the uninterrupted one skips: the window is in the checkpoint") {
  TinyTraining tiny;
  const CapturedOutput captured;
  // So few standard deviations that ordinary steps are spikes.
  const Overrides rule{
      "--training.skip_spikes.window", "8", "--training.skip_spikes.sigma", "0.2", "--training.steps", "24"};
  const Everything expected = finish(tiny, "whole", rule);
  CHECK(expected.state.skipped_spikes > 2);
  CHECK(expected.state.optimizer_step == 24 - expected.state.skipped_spikes);
  CHECK(expected.state.spikes.known == 24);
  CHECK(has(captured.text(), "(training.skip_spikes); weights and optimizer state are unchanged"));
  CHECK((finish(tiny, "resumed", rule + kSaving) == expected));
  for (int later = 13; later <= 24; ++later)
    std::filesystem::remove_all(tiny / ("resumed/checkpoint/step-" + std::to_string(later)));
  CHECK((finish(tiny, "resumed", rule + kSaving, 12) == expected));
  CHECK(logged(tiny / "whole", "skipped_spikes").back() ==
        static_cast<double>(expected.state.skipped_spikes));
  // Off, nothing is remembered.
  const Everything off = finish(tiny, "off", {"--training.steps", "2"});
  CHECK(off.state.spikes.values.empty());
  CHECK(logged(tiny / "off", "skipped_spikes").empty());
}
