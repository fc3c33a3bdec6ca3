#pragma once

#include <memory>
#include <vector>

#include "models/llama/llama_float8.h"
#include "models/llama/llama_head.h"
#include "parallel/pipeline/stage_split.h"

namespace ottava {

struct LlamaModelOptions {
  int64_t sequence = 2048;  ///< longest sequence; rows of the RoPE table
  int64_t loss_chunk_rows = 1024;
  bool loss_parallel = true;         ///< with tensor parallel: softmax statistics travel instead of logits
  float z_loss_weight = 0;           ///< core/ops/cross_entropy.h
  std::vector<Recompute> recompute;  ///< per block; empty: nothing is recomputed
  BlockOverlap overlap = {};         ///< of every block, with tensor parallel
  /// Attention by cuDNN, on a GPU and without documents; null: our kernels.
  std::shared_ptr<cuda::FusedAttention> fused_attention = {};
};

/// One micro-batch on this rank.
struct MicroBatch {
  Tensor tokens;             ///< i32 [B,T]
  Tensor targets;            ///< i32 [B,T]
  Tensor document_start;     ///< i32 [B,T], absent for plain causal attention
  Tensor positions;          ///< i32 [B,T]; with document_start (positions restart) and with context parallel
  Tensor token_losses = {};  ///< f32 [B*T] out, of evaluate(); may be absent
  Tensor sequence_losses = {};  ///< f32 [B] out: sum of the token losses of each sequence; may be absent
  Tensor z_loss_sum = {};       ///< f32 [1], accumulated: sum of the tokens' z-losses; may be absent
};

/// What a range of units keeps of a micro-batch from its forward to its backward.
struct LlamaSaved {
  std::vector<LlamaBlockSaved> blocks;
  LinearOperand gradient;              ///< of the stream that the head read
  DeferredGradients weight_gradients;  ///< from input_gradient() to weight_gradients()
};

/// A Llama-family decoder: embedding, blocks, head. Each is a unit whose parameters are gathered before and
/// released after its turn.
class LlamaModel {
 public:
  /// Takes persistent memory for the RoPE table.
  LlamaModel(const LlamaConfig& config, LlamaParameters parameters, Stream& stream, Arena& arena,
             int tensor_parallel_size, LlamaModelOptions options, const LlamaFloat8& float8 = {});

  /// For each unit, the uses of its weights in backward: a recomputed block runs forward products, too.
  std::span<const WeightUse> backward_uses() const { return backward_uses_; }
  /// All units, from the first to the last.
  StageUnits all_units() const { return {0, parameters_.units}; }
  /// What the head adds to and scales by.
  struct Loss {
    Tensor sum;         ///< f32 [1], accumulated
    Tensor grad_scale;  ///< f32 [1]: d(scaled loss) / d(token loss)
  };
  /// Forward and backward of one micro-batch: gradients and loss.sum are accumulated.
  void forward_backward(const StepContext& context, const MicroBatch& batch, const Loss& loss) const;
  /// The micro-batch's forward through a range of units. `in`: the residual stream [n,C] before them, n being
  /// the rank's rows; absent for the first units. Returns the stream after them, added up; nothing for the
  /// last units, since the head runs forward and backward at once. Overwrites `saved`.
  Allocation forward(const StepContext& context, StageUnits units, const MicroBatch& batch, const Loss& loss,
                     Allocation in, LlamaSaved& saved) const;
  /// The micro-batch's backward: takes the gradient of what forward() returned and returns that of its `in`.
  /// Consumes `saved`.
  Allocation backward(const StepContext& context, StageUnits units, const MicroBatch& batch, Allocation dout,
                      LlamaSaved saved) const;
  /// backward() in two halves: first the gradient of `in` (with those of norms and the embedding), later the
  /// weights'. The sums and their order are the same, if micro-batches come in the same order in both.
  Allocation input_gradient(const StepContext& context, StageUnits units, const MicroBatch& batch,
                            Allocation dout, LlamaSaved& saved) const;
  /// Accumulates the gradients that input_gradient() left in `saved`, and starts summing them over ranks.
  void weight_gradients(const StepContext& context, StageUnits units, LlamaSaved saved) const;
  /// forward() without keeping anything: adds the losses of one micro-batch to loss_sum and fills its
  /// token_losses.
  Allocation evaluate(const StepContext& context, StageUnits units, const MicroBatch& batch,
                      const Tensor& loss_sum, Allocation in) const;

  /// logits f32 [B,V] = those after the last of `tokens`, which begin at `position` and follow what `caches`
  /// (one per block) hold. T > 1 only at position 0 and with B = 1.
  struct Generation {
    Tensor tokens;         ///< i32 [B,T]
    Tensor positions;      ///< i32 [B*T]
    int64_t position = 0;  ///< of the first
    const std::vector<KeyValueCache>& caches;
  };
  void generate(const StepContext& context, const Generation& in, const Tensor& logits) const;

 private:
  Allocation embed(const StepContext& context, const Tensor& tokens) const;
  void embed_backward(const StepContext& context, const Tensor& tokens, const Allocation& dout) const;
  bool has_embedding(StageUnits units) const { return units.begin == 0; }
  bool has_head(StageUnits units) const { return units.end == parameters_.units; }
  /// The stream before the units.
  ResidualStream enter(const StepContext& context, StageUnits units, const MicroBatch& batch,
                       Allocation in) const;
  Allocation go_back(const StepContext& context, StageUnits units, const MicroBatch& batch, Allocation dout,
                     LlamaSaved& saved) const;
  /// sum + delta, rounded as the next norm rounds it.
  Allocation leave(const StepContext& context, ResidualStream stream) const;
  LlamaBatch batch_of(const MicroBatch& batch) const;

  LlamaConfig config_;
  LlamaParameters parameters_;
  int last_;  ///< unit: the head
  LlamaModelOptions options_;
  Tensor rope_table_;
  std::vector<LlamaBlock> blocks_;
  std::vector<WeightUse> backward_uses_;  ///< per unit: a recomputed block runs forward products in backward
  LlamaHead head_;
};

}  // namespace ottava
