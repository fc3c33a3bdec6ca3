#pragma once

#include <vector>

#include "models/llama/llama_parameters.h"
#include "models/llama/recompute.h"
#include "models/llama/stream_norm.h"

namespace ottava {

/// The gated feed-forward of a block:  x + w2(swiglu(w13(norm(x)))).
class FeedForwardLayer {
 public:
  /// How its linear layers run, for the local weights; empty: in the compute type.
  struct Pieces {
    std::vector<LinearPiece> w13, w2;
    Overlap w13_overlap = Overlap::bulk, w2_overlap = Overlap::bulk;
  };
  FeedForwardLayer(const LlamaConfig& config, const LlamaBlockParameters& parameters,
                   int tensor_parallel_size, Pieces pieces);

  /// From forward to backward.
  struct Saved {
    StreamNorm::Saved norm;
    Allocation gate_up;
    LinearInput w13, w2;
  };
  /// Returns the stream [n,C] after the layer. Fills `saved`; the inputs of linear layers are kept only
  /// with Recompute::nothing.
  ResidualStream forward(const StepContext& context, ResidualStream in, Recompute recompute,
                         Saved& saved) const;
  /// Makes again what backward needs of a recomputed block, but not the output.
  void recompute(const StepContext& context, ResidualStream in, Saved& saved) const;
  /// Takes the gradient of the stream after the layer and returns that before it, in the same memory unless
  /// weight gradients are deferred. It is placed for `reader`, the layer that added to the stream last.
  /// Consumes `saved`.
  LinearOperand backward(const StepContext& context, LinearOperand dout, Saved& saved,
                         const Linear& reader) const;
  /// The linear layer that reads the gradient of this layer's output.
  const Linear& last_linear() const { return w2_; }

 private:
  StreamNorm norm_;
  Linear w13_, w2_;
};

}  // namespace ottava
