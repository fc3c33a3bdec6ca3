#pragma once

#include <string>

#include "models/linear.h"

namespace ottava {

/// The residual stream between layers, as sum + delta: the next norm, which reads both anyway, does the
/// addition.
struct ResidualStream {
  Allocation sum;    ///< [n,C]
  Allocation delta;  ///< [n,C], overwritten by the sum; absent after the embedding
};

/// RMSNorm of the residual stream in front of a linear layer.
class StreamNorm {
 public:
  /// `weight`: index of its parameter.
  StreamNorm(std::string name, int weight, float eps) : name_(std::move(name)), weight_(weight), eps_(eps) {}

  /// What backward needs.
  struct Saved {
    Allocation x;     ///< [n,C], the stream's sum
    Allocation rstd;  ///< [n]
  };
  /// norm(in.sum + in.delta), placed as `reader` wants it given what it keeps (`kept`). Overwrites `saved`.
  LinearOperand forward(const StepContext& context, ResidualStream in, const Linear& reader,
                        const LinearInput* kept, Saved& saved) const;
  /// The same values once more [n,C].
  Allocation again(const StepContext& context, const Saved& saved) const;
  /// Gradient of the stream, with `residual`, the gradient that reaches it beside the norm, added. It is
  /// written to the memory of `residual`; if there is none, or if deferred weight gradients still read that,
  /// to the memory of dy. Placed for `reader`, the layer that added to the stream last; null: none.
  /// Accumulates the weight's gradient.
  LinearOperand backward(const StepContext& context, const Allocation& dy, const Saved& saved,
                         const Allocation& residual, const Linear* reader) const;

 private:
  std::string name_;
  int weight_;
  float eps_;
};

}  // namespace ottava
