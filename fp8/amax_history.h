#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava::fp8 {

/// State of the recipe `delayed`: the amaxes of the last steps, one column per quantized operand. Checkpoints
/// keep `rows` and `steps`.
struct AmaxHistory {
  Tensor rows;  ///< u32 [length, slots], bits of amaxes; row (steps % length) is overwritten next
  /// advanced so far; while it is below length, the history fills and current scaling is used
  int64_t steps = 0;
  int64_t margin = 0;  ///< scales are divided by 2^margin

  int64_t length() const { return rows.rows(); }
  bool is_full() const { return steps >= length(); }
};

/// The bits of 1: the amax by which a slot is scaled if its whole history is 0. Nothing is known of what
/// comes next; with this amax, codes of either format hold values from 1 down to at least 1e-5, whereas an
/// amax of 0 would count as 1e-12 and saturate everything above that.
inline constexpr uint32_t kUnseenAmax = 0x3f800000u;

/// 2^margin times an amax, both as bits; limited to the largest float.
uint32_t with_margin(uint32_t amax_bits, int64_t margin);

/// Writes the amaxes from which quantize() takes its scales. While the history fills, these are the present
/// ones; then 2^margin times the largest of the history, limited to the largest float. A NaN or infinity
/// never enters a history; a history of zeros gives kUnseenAmax. Throws ShapeError.
struct DelayedAmax {
  Tensor current;  ///< u32 [slots], bits of the present amaxes; may be left out once the history is full
  Tensor amax;     ///< u32 [slots], written
};
void delayed_amax(Stream& stream, const AmaxHistory& history, const DelayedAmax& a);

/// To be called once per optimizer step, never in recomputation or validation. Overwrites the oldest row with
/// `step_amax`, u32 [slots], the largest over micro-batches and ranks, and counts the step. A slot that is
/// not finite keeps the newest row's value (non_finite makes the step be skipped). So does a slot that is 0:
/// nothing went through it, which says nothing about what will. Throws ShapeError.
void advance(Stream& stream, AmaxHistory& history, const Tensor& step_amax);

}  // namespace ottava::fp8
