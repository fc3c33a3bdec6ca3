#pragma once

#include <vector>

#include "core/ops/attention/attention.h"
#include "models/llama/llama_parameters.h"
#include "models/llama/recompute.h"
#include "models/llama/stream_norm.h"

namespace ottava {

/// Shape of a micro-batch on this rank, and what all blocks share. With context parallel, rows are as
/// ContextParallelGroup says: `batch` is twice the number of sequences, `sequence` the length of a chunk, and
/// positions are given.
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
    /// What a recomputed block keeps: its input and, if asked for, attention's output.
    void drop_all_but_input(bool keeps_attention);
  };
  /// Returns the stream [n,C] after the layer. Fills `saved`; the inputs of linear layers are kept only
  /// with Recompute::nothing. Attention that `saved` has already is not computed again.
  ResidualStream forward(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                         Recompute recompute, Saved& saved) const;
  /// Takes the gradient of the stream after the layer and returns that before it, in the same memory unless
  /// weight gradients are deferred. It is placed for `reader`, the layer that added to the stream last; null:
  /// none did. Consumes `saved`.
  LinearOperand backward(const StepContext& context, const LlamaBatch& batch, LinearOperand dout,
                         Saved& saved, const Linear* reader) const;
  /// Where ranks share sequences, how many of a rank's KV heads have their keys and values travel at once: a
  /// quarter, as far as the number divides.
  static int64_t heads_at_once(int64_t kv_heads);
  /// The linear layer that reads the gradient of this layer's output.
  const Linear& last_linear() const { return wo_; }
  /// forward() for a prompt (position 0) or a single token; appends keys and values at `position`.
  ResidualStream generate(const StepContext& context, const LlamaBatch& batch, ResidualStream in,
                          const KeyValueCache& cache, int64_t position) const;

 private:
  /// Makes qkv from the norm's output, normalised and rotated.
  void project(const StepContext& context, const LlamaBatch& batch, const LinearOperand& x, LinearInput* kept,
               Saved& saved) const;
  void attend(const StepContext& context, const LlamaBatch& batch, Saved& saved) const;
  struct Rows;
  void attend_rows(const StepContext& context, const LlamaBatch& batch, const Rows& rows,
                   const SeparateKeys& keys, const Saved& saved) const;
  void attend_rows_backward(const StepContext& context, const LlamaBatch& batch, const Rows& rows,
                            const SeparateKeys& keys, const Allocation& dattention, const Allocation& dqkv,
                            const Saved& saved) const;
  /// The same where ranks share sequences: one group of KV heads at a time. While one group's attention is
  /// computed, the next group's keys and values travel, and so do the gradients of the group before. In
  /// backward the first group's keys and values travel beside wo's products.
  ContextParallelGroup::Gathering gather_first_group(const StepContext& context, const Saved& saved) const;
  void attend_apart(const StepContext& context, const LlamaBatch& batch, Saved& saved) const;
  void attend_apart_backward(const StepContext& context, const LlamaBatch& batch,
                             const Allocation& dattention, const Allocation& dqkv, const Saved& saved,
                             ContextParallelGroup::Gathering first) const;
  Allocation attend_backward(const StepContext& context, const LlamaBatch& batch,
                             const Allocation& dattention, const Saved& saved,
                             ContextParallelGroup::Gathering first) const;
  /// Turns the gradient of what attention reads into that of what wqkv wrote, in place.
  void project_backward(const StepContext& context, const LlamaBatch& batch, const Allocation& dqkv,
                        Saved& saved) const;

  LlamaBlockParameters parameters_;
  AttentionHeads heads_;  ///< local to a tensor-parallel rank
  StreamNorm norm_;
  float norm_eps_;
  Linear wqkv_, wo_;
};

}  // namespace ottava
