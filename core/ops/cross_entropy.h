#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Softmax cross-entropy of a chunk of rows whose vocabulary may be split among ranks. It has three steps;
/// between them a vocab-parallel caller combines `row_max` (by max) and `row_sum` and `row_target` (by sum)
/// over its ranks. Logits f32 [n,V]; targets i32 [n], global ids, `kIgnoreIndex` for rows that do not count;
/// columns >= `valid_columns` are padding (-inf).
inline constexpr int32_t kIgnoreIndex = -100;

struct CrossEntropy {
  Tensor logits, targets;
  Tensor row_max, row_sum, row_target;  ///< f32 [n]
  int64_t vocab_begin = 0;              ///< global id of column 0
  int64_t valid_columns = 0;
};
/// First step: row_max = max_v logits. Overwrites. Throws ShapeError, as the other steps do.
void cross_entropy_max(Stream& stream, const CrossEntropy& args);
/// Second step: row_sum = sum_v exp(logit - row_max); row_target = the target's logit, or 0 where it is not
/// among these columns. Overwrites.
void cross_entropy_sum(Stream& stream, const CrossEntropy& args);

/// Third step. With lse = log row_sum + row_max and c = z_loss_weight (the z-loss of arXiv:2204.02311, which
/// keeps lse near 0):
///     losses[n]   = lse - row_target                                  0 for ignored rows
///     z_losses[n] = c lse^2                                           0 for ignored rows
///     dlogits [n,V] f32|bf16 = (softmax (1 + 2 c lse) - onehot) * grad_scale[0]
/// Rows of ignored targets and padding columns of dlogits are 0. All outputs are overwritten.
struct CrossEntropyBackward {
  CrossEntropy forward;
  Tensor losses;      ///< f32 [n]
  Tensor dlogits;     ///< left out: loss only (validation); may be `logits` when f32
  Tensor grad_scale;  ///< f32 [1] on the device; needed with dlogits
  float z_loss_weight = 0;
  Tensor z_losses = {};  ///< f32 [n]; may be left out
};
void cross_entropy_backward(Stream& stream, const CrossEntropyBackward& args);

/// The three steps in one, for a vocabulary that is not split: the same values, but the logits are read once
/// on the CPU, and on CUDA where rows have at most 8192 columns (a multiple of 4) or dlogits is left out;
/// else twice there, in place of three times.
void cross_entropy(Stream& stream, const CrossEntropyBackward& args);

}  // namespace ottava
