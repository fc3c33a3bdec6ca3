#pragma once

#include "core/ops/attention/attention.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "models/linear.h"
#include "models/llama/llama_parameters.h"

namespace ottava {

/// The residual stream between blocks, as sum + delta: the addition happens in the next norm, which reads
/// both anyway.
struct ResidualStream {
  Allocation sum;    ///< [n,C]
  Allocation delta;  ///< [n,C], overwritten by the sum; absent after the embedding
};

/// The gradient of the residual stream [n,C]: of the output of the layer that added to it last, for which
/// `codes` are the same in FP8, where it takes them.
struct StreamGradient {
  Allocation values;
  Float8Allocation codes;
};
/// rms_norm_backward, whose workspace it brings. `reader`: the layer whose output's gradient dx is; it gets
/// its amax or the codes that are returned. Null: neither is wanted.
Float8Allocation norm_backward(const StepContext& context, RmsNormBackward args, const Linear* reader);

/// What of a block's forward pass is computed again in backward. Every mode gives bitwise the same gradients.
enum class Recompute {
  nothing,
  elementwise,  ///< outputs of the norms and of the activation: cheap to make, a third of the memory
  block,        ///< all but the block's input
};

/// What a block keeps from forward to backward.
struct LlamaBlockSaved {
  Allocation x, h;  ///< residual stream before attention and before the feed-forward layer
  Allocation attention_rstd, ffn_rstd;
  Allocation projected, qk_rstd;  ///< qkv before QK-norm, only with it
  Allocation qkv, attention, lse;
  Allocation gate_up;
  LinearInput wqkv, wo, w13, w2;
};

/// Shape of a micro-batch and what every block shares.
struct LlamaBatch {
  int64_t batch = 0, sequence = 0;
  Tensor rope_table;
  Tensor positions;       ///< i32 [N]; absent: token index modulo sequence
  Tensor document_start;  ///< i32 [N]; absent: plain causal
  cuda::FusedAttention* fused_attention = nullptr;
};

/// Keys and values of one block for generation: [B, capacity, kv_heads * head_dim] each.
struct KeyValueCache {
  Tensor keys, values;
};

/// How a block's linear layers run, for the local weights; empty: in the compute type.
struct LlamaBlockPieces {
  std::vector<LinearPiece> wqkv, wo, w13, w2;
};

/// Pre-norm transformer block:  h = x + attention(norm(x));  out = h + w2(swiglu(w13(norm(h)))).
class LlamaBlock {
 public:
  LlamaBlock(const LlamaConfig& config, const LlamaBlockParameters& parameters, int tensor_parallel_size,
             LlamaBlockPieces pieces);

  ResidualStream forward(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                         Recompute recompute, LlamaBlockSaved& saved) const;
  /// Gradient of the block's output [n,C] in, gradient of its input out (in the same memory). Consumes
  /// `saved`. `before`: the last_layer() of the block before; null for the first.
  StreamGradient backward(const StepContext& context, const LlamaBatch& batch, StreamGradient dout,
                          LlamaBlockSaved saved, const Linear* before) const;
  /// The reader of `dout`, for its producer.
  const Linear& last_layer() const { return w2_; }
  /// One pass without gradients that appends keys and values at `position`; a prompt (position 0) or one
  /// token.
  ResidualStream generate(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                          const KeyValueCache& cache, int64_t position) const;

 private:
  /// What a norm or the activation leaves for the linear layer that reads it: in the compute type or, where
  /// that layer takes them and nothing is kept, only as FP8 codes.
  struct Produced {
    Allocation values;
    Float8Allocation codes;
    Allocation read_by(const Linear& reader, const StepContext& context, LinearInput* keep) const {
      return codes ? reader.forward(context, codes) : reader.forward(context, values, keep);
    }
  };
  Produced normalise(const StepContext& context, ResidualStream in, int weight, Allocation& sum,
                     Allocation& rstd, std::string_view name, const Linear& reader, bool keeps) const;
  Produced activate(const StepContext& context, const Tensor& gate_up, bool keeps) const;
  Allocation normalise_again(const StepContext& context, const Allocation& sum, const Allocation& rstd,
                             int weight, std::string_view name) const;
  void project(const StepContext& context, const LlamaBatch& batch, const Produced& x, LlamaBlockSaved& saved,
               LinearInput* keep) const;
  void attend(const StepContext& context, const LlamaBatch& batch, LlamaBlockSaved& saved) const;
  Allocation attention_half(const StepContext& context, const LlamaBatch& batch, const Produced& normalised,
                            Recompute recompute, LlamaBlockSaved& saved) const;
  Allocation feed_forward_half(const StepContext& context, const Produced& normalised, Recompute recompute,
                               LlamaBlockSaved& saved) const;
  void recompute_block(const StepContext& context, const LlamaBatch& batch, LlamaBlockSaved& saved) const;
  StreamGradient feed_forward_backward(const StepContext& context, StreamGradient dout,
                                       LlamaBlockSaved& saved) const;
  StreamGradient attention_backward_half(const StepContext& context, const LlamaBatch& batch,
                                         StreamGradient dh, LlamaBlockSaved& saved,
                                         const Linear* before) const;
  /// Gradient of gate_up, in its place.
  Float8Allocation activate_backward(const StepContext& context, SwigluBackward args) const;
  /// A norm's share is added to the gradient of the stream, in its place.
  StreamGradient pass_norm(const StepContext& context, const Allocation& dy, const Allocation& sum,
                           const Allocation& rstd, int weight, const Allocation& stream_gradient,
                           const Linear* reader) const;

  LlamaBlockParameters parameters_;
  AttentionHeads heads_;  ///< local to a tensor-parallel rank
  float norm_eps_;
  Linear wqkv_, wo_, w13_, w2_;
};

}  // namespace ottava
