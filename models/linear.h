#pragma once

#include <string>

#include "models/step_context.h"

namespace ottava {

/// How a linear layer is cut among tensor-parallel ranks (arXiv:1909.08053), with the residual stream cut along tokens
/// (arXiv:2205.05198). n = N / tp tokens are local, N all of them.
enum class LinearStyle {
  column,  ///< x [n,K] is gathered to [N,K]; y [N, O/tp]
  row,     ///< x [N, K/tp]; y is summed over ranks and scattered to [n,O]
};

/// What a layer keeps of its input for the weight gradient.
struct LinearInput {
  Allocation x;  ///< the local input in the compute type
};

/// The gradient of a layer's output in the forms its two backward products need.
struct LinearOutputGradient {
  Allocation dy;  ///< all tokens
};

/// y = x W^T (+ b) with W [O,K] from the parameter table. Forward, input gradient and weight gradient are apart, so that
/// a block can recompute its input between them.
class Linear {
 public:
  Linear(std::string name, LinearStyle style, int weight, int bias = -1);

  const std::string& name() const { return name_; }
  /// Keeps what the weight gradient needs in `saved`, unless it is null.
  Allocation forward(const StepContext& context, const Allocation& x, LinearInput* saved) const;
  /// The same keeping for an input that was recomputed.
  LinearInput keep(const StepContext& context, const Allocation& x) const;

  LinearOutputGradient output_gradient(const StepContext& context, const Allocation& dy) const;
  Allocation input_gradient(const StepContext& context, const LinearOutputGradient& gradient) const;
  /// Accumulates into the weight's (and bias's) FP32 gradient.
  void weight_gradient(const StepContext& context, const LinearOutputGradient& gradient, const LinearInput& saved) const;

 private:
  std::string name_;
  LinearStyle style_;
  int weight_, bias_;
};

}  // namespace ottava
