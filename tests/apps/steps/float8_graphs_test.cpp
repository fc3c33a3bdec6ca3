#include <algorithm>

#include "core/cuda/runtime.h"
#include "fp8/recipe.h"
#include "tests/support/catch.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"
#include "tests/support/nccl_ranks.h"
#include "tests/support/skip.h"

// FP8 with ranks that have a GPU each: bytes of weights and activations travel over NCCL, scales are
// exchanged, and all of it is in the step's graphs. However the step is put on the device, every bit is the
// same.

using namespace ottava;
using namespace ottava::test;

namespace {

bool scales_blocks(const Float8Config& config) {
  return config.recipe_name == "blockwise" || config.recipe_name == "mxfp8";
}

// Two blocks with heads of 64, or one whose matrices hold whole blocks of scales; every matrix in FP8, also
// as halves. 72 tokens of a vocabulary do not split into rows for FP8 without padding.
TrainingShape whole_step(const Float8Config& config, int tp) {
  TrainingShape whole = float8_step();
  whole.model.heads = whole.model.kv_heads = 2;
  if (scales_blocks(config)) {
    whole.model.layers = 1;
    whole.model.head_dim = 32;
    whole.batch = 4;
    whole.groups.clear();
    return in_float8(whole, config, tp, cuda::compute_capability(0));
  }
  whole.model.head_dim = 64;
  whole.model.ffn_dim = 96;
  whole.model.vocab_size = config.pad_vocabulary ? 72 : 96;
  whole.batch = 4;
  whole.sequence = whole.model_options.sequence = whole.model_options.loss_chunk_rows = 16;
  whole.groups.clear();
  return in_float8(whole, config, tp, cuda::compute_capability(0));
}

struct Case {
  const char* name;
  Layout layout;
  Float8Config config;
};

}  // namespace

TEST_CASE(
    "FP8 steps over NCCL: as graphs and one by one, over NCCL and through the host, every bit is the same") {
  constexpr int kSteps = 4;
  const Float8Config tensorwise{.recipe_name = "tensorwise",
                                .enable_fsdp_float8_all_gather = true,
                                .enable_tp_float8_all_gather = true};
  Float8Config delayed = tensorwise;
  delayed.recipe_name = "delayed";
  delayed.amax_history_length = 1;  // full after the first step: the third is launched, as the others are
  Float8Config rowwise = tensorwise, blockwise = tensorwise, mxfp8 = tensorwise, gradients = tensorwise,
               padded = tensorwise;
  rowwise.recipe_name = "rowwise";
  blockwise.recipe_name = "blockwise";
  mxfp8.recipe_name = "mxfp8";
  gradients.enable_float8_gradient_all_to_all = true;
  padded.policy = {{"output", "tensorwise"}};
  padded.pad_vocabulary = true;
  const std::vector<Case> cases = {
      {"tensorwise, FSDP 2", {.dp_shard = 2, .micro_batches = 2}, tensorwise},
      {"tensorwise, TP 2", {.tp = 2, .micro_batches = 2}, tensorwise},
      {"delayed, FSDP 2", {.dp_shard = 2, .micro_batches = 1}, delayed},
      {"rowwise, FSDP 2", {.dp_shard = 2, .micro_batches = 2}, rowwise},
      {"blockwise, FSDP 2", {.dp_shard = 2, .micro_batches = 1}, blockwise},
      {"mxfp8, FSDP 2", {.dp_shard = 2, .micro_batches = 1}, mxfp8},
      {"gradients in FP8, FSDP 2", {.dp_shard = 2, .micro_batches = 2}, gradients},
      {"padded vocabulary, TP 2", {.tp = 2, .micro_batches = 2}, padded},
  };
  for (const Case& c : cases) {
    if (nccl_ranks(c.layout.world_size()) < c.layout.world_size())
      return skip("NCCL needs a GPU for each rank");
    const auto there = fp8::recipes_of_compute_capability(cuda::compute_capability(0));
    if (std::ranges::find(there, fp8::parse_recipe(c.config.recipe_name)) == there.end()) continue;
    DYNAMIC_SECTION(c.name) {
      const TrainingShape whole = whole_step(c.config, c.layout.tp);
      REQUIRE(whole.float8.is_on());
      const LayoutCurve plain = train_over_nccl(whole, c.layout, kSteps),
                        graphs = train_over_nccl(whole, c.layout, kSteps, StepForm::graphs);
      CHECK(plain.loss[0] != plain.loss[kSteps - 1]);
      // The same layout on the CPU, where FP8 products are exact: what differs is the order of sums.
      const LayoutCurve cpu = train_on(whole, c.layout, kSteps, {DeviceType::cpu, 0});
      for (size_t step = 0; step < cpu.loss.size(); ++step) {
        INFO("step " << step);
        CHECK(plain.loss[step] == Approx(cpu.loss[step]).epsilon(2e-3));
        CHECK(plain.grad_norm[step] == Approx(cpu.grad_norm[step]).epsilon(2e-2));
      }
      CHECK(graphs.loss == plain.loss);
      CHECK(graphs.grad_norm == plain.grad_norm);
      CHECK((graphs.weights == plain.weights));
      for (size_t rank = 0; rank < graphs.calls.size(); ++rank) {
        // What remains the host's is the refresh of weights' scales at the beginning of a step.
        CHECK(graphs.calls[rank] < plain.calls[rank] / 4);
      }
      const LayoutCurve staged = train_on(whole, c.layout, kSteps, {DeviceType::cuda, 0});
      CHECK(staged.loss == plain.loss);
      CHECK(staged.grad_norm == plain.grad_norm);
      CHECK((staged.weights == plain.weights));
    }
  }
}
