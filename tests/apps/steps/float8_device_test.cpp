#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/float8_shape.h"
#include "tests/support/layout_run.h"

// FP8 layouts with every kernel of a GPU: gathered bytes are transposed for its products, scales of blocks
// with them, and what it lacks is emulated (mxfp8 on sm_90).

using namespace ottava;
using namespace ottava::test;

TEST_CASE("FP8 steps on every device end where the CPU's do, on one rank and where bytes are gathered") {
  const std::vector<std::pair<const char*, Layout>> cases = {{"tensorwise", {}},
                                                             {"tensorwise", {.dp_shard = 2}},
                                                             {"tensorwise", {.tp = 2}},
                                                             {"rowwise", {.dp_shard = 2}},
                                                             {"blockwise", {.dp_shard = 2}},
                                                             {"mxfp8", {}},
                                                             {"mxfp8", {.dp_shard = 2}},
                                                             {"delayed", {}},
                                                             {"delayed", {.dp_shard = 2}}};
  for (const auto& [recipe, layout] : cases) {
    const bool is_emulated = std::string_view(recipe) == "mxfp8";
    const Float8Config config{
        .recipe_name = recipe,
        .emulate = is_emulated,
        .amax_history_length = 1,  // of delayed: the second step's scales are the first's
        .enable_fsdp_float8_all_gather = true,
        .enable_tp_float8_all_gather = true};
    TrainingShape whole = float8_step();
    whole.model.layers = 1;
    whole.model.heads = 2;
    whole.model.head_dim = 32;
    whole.batch = 2;
    whole.groups.clear();
    // Sharded ones are recomputed: norms and the activation then write bytes.
    if (layout.dp_shard > 1) whole.model_options.recompute = {Recompute::block};
    whole = in_float8(whole, config, layout.tp, is_emulated ? std::optional<int>(90) : std::nullopt);
    const LayoutCurve cpu = train_on(whole, layout, 2, {DeviceType::cpu, 0});
    for (Device device : devices()) {
      INFO(recipe << " on FSDP " << layout.dp_shard << " x TP " << layout.tp << ", device "
                  << to_string(device));
      const LayoutCurve got = train_on(whole, layout, 2, device);
      for (size_t i = 0; i < got.loss.size(); ++i) {
        CHECK(got.loss[i] == Approx(cpu.loss[i]).epsilon(2e-3));
        CHECK(got.grad_norm[i] == Approx(cpu.grad_norm[i]).epsilon(2e-2));
      }
    }
  }
}
