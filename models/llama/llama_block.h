#pragma once

#include "core/ops/attention.h"
#include "models/linear.h"
#include "models/llama/llama_parameters.h"

namespace ottava {

/// The residual stream between blocks, as sum + delta: the addition happens in the next norm, which reads
/// both anyway.
struct ResidualStream {
  Allocation sum;    ///< [n,C]
  Allocation delta;  ///< [n,C], overwritten by the sum; absent after the embedding
};

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
  /// `saved`. `amax`: where the result's is wanted, the output_gradient_amax() of the block before; else
  /// empty.
  Allocation backward(const StepContext& context, const LlamaBatch& batch, Allocation dout,
                      LlamaBlockSaved saved, const Tensor& amax) const;
  /// Slot for whoever makes `dout`; empty where nothing wants it.
  Tensor output_gradient_amax(const StepContext& context) const { return w2_.output_gradient_amax(context); }
  /// One pass without gradients that appends keys and values at `position`; a prompt (position 0) or one
  /// token.
  ResidualStream generate(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                          const KeyValueCache& cache, int64_t position) const;

 private:
  /// What a norm or the activation leaves for the linear layer that reads it: in the compute type or, where
  /// that layer takes them and nothing is kept, as FP8 bytes that were never written otherwise.
  struct Produced {
    Allocation values;
    Float8Matrix bytes;
    Allocation read_by(const Linear& reader, const StepContext& context, LinearInput* keep) const {
      return bytes ? reader.forward(context, bytes) : reader.forward(context, values, keep);
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
  Allocation feed_forward_backward(const StepContext& context, Allocation dout, LlamaBlockSaved& saved) const;
  Allocation attention_backward_half(const StepContext& context, const LlamaBatch& batch, Allocation dh,
                                     LlamaBlockSaved& saved, const Tensor& amax) const;
  void norm_backward(const StepContext& context, const Allocation& dy, const Allocation& sum,
                     const Allocation& rstd, int weight, const Allocation& stream_gradient,
                     const Tensor& amax) const;

  LlamaBlockParameters parameters_;
  AttentionHeads heads_;  ///< local to a tensor-parallel rank
  float norm_eps_;
  Linear wqkv_, wo_, w13_, w2_;
};

}  // namespace ottava
