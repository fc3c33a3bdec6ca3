#pragma once

#include <optional>

#include "core/ops/cross_entropy.h"
#include "models/llama/llama_block.h"

namespace ottava {

/// Final norm, output layer and cross-entropy. Logits are made, used and dropped in chunks of rows, forward
/// and backward together, so those of the whole batch never exist at once. With tensor parallel the
/// vocabulary is cut among ranks, and three small all-reduces per chunk combine the softmax; logits are
/// gathered only if loss_parallel is off.
class LlamaHead {
 public:
  struct Options {
    int64_t chunk_rows = 1024;
    /// false: each rank gathers a chunk's logits and computes the softmax by itself
    bool loss_parallel = true;
    float z_loss_weight = 0;
  };
  /// How the output layer runs: in FP8 if `float8` is set, then on `padded_rows` local rows if that is more
  /// than there are.
  struct Output {
    std::optional<Float8Product> float8;
    int64_t padded_rows = 0;
  };
  LlamaHead(const LlamaConfig& config, int norm, int output, Output precision, Options options);

  struct Loss {
    Tensor targets;             ///< i32 [N], all tokens of the micro-batch
    Tensor sum;                 ///< f32 [1], accumulated: sum of the losses of valid tokens
    Tensor grad_scale;          ///< f32 [1]: d(scaled loss) / d(token loss)
    Tensor sequence_sums = {};  ///< f32 [B], overwritten: sum of the losses of each sequence; may be absent
    Tensor token_losses = {};   ///< f32 [N], overwritten: 0 where the loss does not count; may be absent
    Tensor z_loss_sum = {};     ///< f32 [1], accumulated: sum of the z-losses of valid tokens; may be absent
  };
  /// Returns the gradient of the residual stream, placed for `reader`, the layer that added to it last (null:
  /// none on this rank). Accumulates loss.sum and the gradients of norm and output.
  LinearOperand forward_backward(const StepContext& context, ResidualStream in, const Loss& loss,
                                 const Linear* reader) const;
  /// Forward only: adds to loss.sum and fills loss.token_losses.
  void evaluate(const StepContext& context, ResidualStream in, const Loss& loss) const;
  /// out f32 [rows, V] = the logits of the rows given, computed in the compute type; for generation.
  void logits(const StepContext& context, ResidualStream in, const Tensor& out) const;

 private:
  struct Normalised {
    StreamNorm::Saved saved;
    Allocation y;  ///< [N,C] of all ranks
  };
  Normalised normalise(const StepContext& context, ResidualStream in) const;
  /// Losses of a chunk's logits and, where it has room for it, their gradient.
  void differentiate(const StepContext& context, const CrossEntropyBackward& chunk) const;
  /// A chunk's row_max, row_sum and row_target, over the vocabulary of all tensor-parallel ranks.
  void softmax(const StepContext& context, const CrossEntropy& chunk) const;
  /// sums [B] = the sums of the losses [N] of each sequence.
  void sum_sequences(const StepContext& context, const Tensor& losses, const Tensor& sums) const;
  enum class Pass { training, evaluation };
  void chunks(const StepContext& context, const Normalised& in, const Loss& loss, Pass pass) const;
  void project(const StepContext& context, const Tensor& y, const Tensor& logits, bool keep,
               Float8Allocation& kept) const;
  void project_backward(const StepContext& context, const Tensor& dlogits, const Float8Allocation& kept,
                        const Tensor& y) const;

  int norm_, output_;
  Output precision_;
  int64_t dim_;
  Options options_;
  float norm_eps_;
};

}  // namespace ottava
