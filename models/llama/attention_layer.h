#pragma once

#include <vector>

#include "core/ops/attention/attention.h"
#include "models/llama/llama_parameters.h"
#include "models/llama/recompute.h"
#include "models/llama/stream_norm.h"

namespace ottava {

/// Shape of a micro-batch on this rank, and what every block shares. With context parallel ranks the rows are
/// ContextParallelGroup's: `batch` is twice the sequences, `sequence` a chunk, and positions are given.
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

/// Causal self-attention of a block:  x + wo(attention(rope(qk_norm(wqkv(norm(x)))))), the inner norm only
/// where the model has one.
class AttentionLayer {
 public:
  /// How its linear layers run, for the local weights; empty: in the compute type.
  struct Pieces {
    std::vector<LinearPiece> wqkv, wo;
    Overlap wqkv_overlap = Overlap::bulk, wo_overlap = Overlap::bulk;
  };
  AttentionLayer(const LlamaConfig& config, const LlamaBlockParameters& parameters, int tensor_parallel_size,
                 Pieces pieces);

  /// From forward to backward.
  struct Saved {
    StreamNorm::Saved norm;
    Allocation projected, qk_rstd;  ///< qkv before QK-norm, only with it
    Allocation qkv, attention, lse;
    LinearInput wqkv, wo;
  };
  ResidualStream forward(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                         Recompute recompute, Saved& saved) const;
  /// Gradient of the stream after the layer in, before it out, in the same memory and placed for `reader`,
  /// which added to it last; null: none did. Consumes `saved`.
  LinearOperand backward(const StepContext& context, const LlamaBatch& batch, LinearOperand dout,
                         Saved& saved, const Linear* reader) const;
  /// Of so many KV heads on a rank, those whose keys and values travel at once where ranks share sequences: a
  /// quarter, as far as they divide.
  static int64_t heads_at_once(int64_t kv_heads);
  /// Reads the gradient of the layer's output.
  const Linear& last_linear() const { return wo_; }
  /// Appends keys and values at `position`; a prompt (position 0) or one token.
  ResidualStream generate(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                          const KeyValueCache& cache, int64_t position) const;

 private:
  /// qkv of the norm's output, normalised and rotated.
  void project(const StepContext& context, const LlamaBatch& batch, const LinearOperand& x, LinearInput* kept,
               Saved& saved) const;
  void attend(const StepContext& context, const LlamaBatch& batch, Saved& saved) const;
  struct Rows;
  void attend_rows(const StepContext& context, const LlamaBatch& batch, const Rows& rows,
                   const SeparateKeys& keys, const Saved& saved) const;
  void attend_rows_backward(const StepContext& context, const LlamaBatch& batch, const Rows& rows,
                            const SeparateKeys& keys, const Allocation& dattention, const Allocation& dqkv,
                            const Saved& saved) const;
  /// The same where ranks share sequences: a group of KV heads at a time, so that keys and values of the next
  /// travel while this one's attention is computed, as do the gradients of the one before. In backward those
  /// of the first group travel beside wo's products.
  ContextParallelGroup::Gathering gather_first_group(const StepContext& context, const Saved& saved) const;
  void attend_apart(const StepContext& context, const LlamaBatch& batch, Saved& saved) const;
  void attend_apart_backward(const StepContext& context, const LlamaBatch& batch,
                             const Allocation& dattention, const Allocation& dqkv, const Saved& saved,
                             ContextParallelGroup::Gathering first) const;
  Allocation attend_backward(const StepContext& context, const LlamaBatch& batch,
                             const Allocation& dattention, const Saved& saved,
                             ContextParallelGroup::Gathering first) const;
  /// From the gradient of what attention reads to that of what wqkv wrote, in its place.
  void project_backward(const StepContext& context, const LlamaBatch& batch, const Allocation& dqkv,
                        Saved& saved) const;

  LlamaBlockParameters parameters_;
  AttentionHeads heads_;  ///< local to a tensor-parallel rank
  StreamNorm norm_;
  float norm_eps_;
  Linear wqkv_, wo_;
};

}  // namespace ottava
