#pragma once

#include "models/llama/llama_parameters.h"
#include "tests/support/catch.h"
#include "tests/support/engine_run.h"
#include "tests/support/layout_run.h"

// A step of a small model, and what it is compared with: the same step cut among ranks.
namespace ottava::test {

inline constexpr int kSteps = 20;
inline constexpr double kTolerance = 1e-5;  ///< of losses and norms, relative: sums are made in another order

// In each block two matrices are large enough to be gathered by themselves; the others travel packed. None
// divides among three ranks.
inline TrainingShape whole_step() {
  const LlamaConfig model{
      .dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn_dim = 160, .vocab_size = 320};
  TrainingShape shape = tiny_shape(model, 24, 12);
  shape.model_options.loss_chunk_rows = 40;
  shape.max_norm = 0.2f;  // norms are about 0.5
  shape.groups.assign(llama_parameters(model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  return shape;
}

inline TrainingShape with_model(void (*change)(LlamaConfig&)) {
  TrainingShape shape = whole_step();
  change(shape.model);
  shape.groups.assign(llama_parameters(shape.model).specs.size(), {.weight_decay = 0.1f, .lr_factor = 1});
  return shape;
}

inline void require_near(const LayoutCurve& got, const LayoutCurve& want, double tolerance) {
  REQUIRE(got.loss.size() <= want.loss.size());
  for (size_t step = 0; step < got.loss.size(); ++step) {
    INFO("step " << step);
    REQUIRE(got.loss[step] == Approx(want.loss[step]).epsilon(tolerance));
    REQUIRE(got.grad_norm[step] == Approx(want.grad_norm[step]).epsilon(tolerance));
  }
}

inline void require_same_bits(const LayoutCurve& again, const LayoutCurve& first) {
  for (size_t step = 0; step < again.loss.size(); ++step) {
    INFO("step " << step);
    REQUIRE(again.loss[step] == first.loss[step]);
    REQUIRE(again.grad_norm[step] == first.grad_norm[step]);
  }
}

inline void check_layout(const TrainingShape& whole, const LayoutCurve& single, const Layout& layout,
                         double tolerance = kTolerance) {
  const LayoutCurve curve = train_on(whole, layout, kSteps);
  require_near(curve, single, tolerance);
  require_same_bits(train_on(whole, layout, 3), curve);
}

struct Case {
  const char* name;
  Layout layout;
};

}  // namespace ottava::test
