#include <map>

#include "apps/checkpoints/float8_history.h"
#include "core/contains.h"
#include "core/cuda/runtime.h"
#include "fp8/recipe.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/engine_run.h"
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

bool has_recipe(const std::string& name) {
  return contains(fp8::recipes_of_compute_capability(cuda::compute_capability(0)), fp8::parse_recipe(name));
}

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
  delayed.amax_history_length = 1;  // full after the first step: the fourth is launched
  Float8Config filling = delayed, rowwise = tensorwise, blockwise = tensorwise, mxfp8 = tensorwise,
               gradients = tensorwise, padded = tensorwise;
  filling.amax_history_length = 2 * kSteps;
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
      {"delayed, whose history fills, FSDP 2", {.dp_shard = 2, .micro_batches = 2}, filling},
      {"rowwise, FSDP 2", {.dp_shard = 2, .micro_batches = 2}, rowwise},
      {"blockwise, FSDP 2", {.dp_shard = 2, .micro_batches = 1}, blockwise},
      {"mxfp8, FSDP 2", {.dp_shard = 2, .micro_batches = 1}, mxfp8},
      {"gradients in FP8, FSDP 2", {.dp_shard = 2, .micro_batches = 2}, gradients},
      {"padded vocabulary, TP 2", {.tp = 2, .micro_batches = 2}, padded},
  };
  for (const Case& c : cases) {
    if (nccl_ranks(c.layout.world_size()) < c.layout.world_size())
      return skip("NCCL needs a GPU for each rank");
    if (!has_recipe(c.config.recipe_name)) continue;
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

namespace {

constexpr int kHistory = 4;

struct DelayedRun {
  std::vector<double> loss, grad_norm;
  std::vector<bool> launched;  ///< steps whose products the host did not put on the device
  std::string history;         ///< after the last step
};

/// Steps that begin with the history of an earlier run, or with none.
DelayedRun run_delayed(int steps, const std::string& history, StepForm form) {
  const TrainingShape shape = shape_on(
      whole_step({.recipe_name = "delayed", .amax_history_length = kHistory}, 1), {.micro_batches = 2});
  EngineRun run(shape, {DeviceType::cuda, 0});
  run->parameters().initialise(3);
  if (!history.empty()) restore_float8_history(history, "an earlier run", *run, run.stream());
  if (form == StepForm::graphs) run->graphs().enable(*run.ranks().world);
  const int64_t count = shape.micro_batches * shape.batch * shape.sequence;
  DelayedRun out;
  for (int step = 0; step < steps; ++step) {
    const auto inputs = random_tokens(count, shape.model.vocab_size, step),
               targets = random_tokens(count, shape.model.vocab_size, step + 100);
    const StepOutputs done =
        run->train_step({.inputs = inputs, .targets = targets, .document_start = {}, .positions = {}},
                        {.learning_rate = 1e-3, .optimizer_step = step + 1, .valid_tokens = count});
    out.loss.push_back(done.loss_sum);
    out.grad_norm.push_back(done.grad_norm);
    out.launched.push_back(run->float8()->products_run() == 0);
  }
  out.history = float8_history_json(*run, run.stream());
  return out;
}

}  // namespace

TEST_CASE("delayed: a history that fills has graphs of its own, a full one others, and no bit differs") {
  if (!has_gpu()) return skip(kNoGpu);
  if (!has_recipe("delayed")) return skip("this GPU has no FP8");
  const std::map<int, std::vector<bool>> launched = {{0, {0, 0, 1, 1, 0, 0, 1, 1}},
                                                     {1, {0, 0, 1, 0, 0, 1, 1, 1}},
                                                     {2, {0, 0, 0, 0, 1, 1, 1, 1}},
                                                     {kHistory, {0, 0, 1, 1, 1, 1, 1, 1}}};
  for (const auto& [filled, expected] : launched) {
    INFO("goes on with " << filled << " of " << kHistory << " steps of history");
    const std::string history = filled > 0 ? run_delayed(filled, "", StepForm::plain).history : "";
    const DelayedRun plain = run_delayed(8, history, StepForm::plain),
                     graphs = run_delayed(8, history, StepForm::graphs);
    CHECK(plain.loss[0] != plain.loss[7]);
    CHECK(plain.launched == std::vector<bool>(8));
    CHECK(graphs.launched == expected);
    CHECK(graphs.loss == plain.loss);
    CHECK(graphs.grad_norm == plain.grad_norm);
    CHECK(graphs.history == plain.history);
  }
}
