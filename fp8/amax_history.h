#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava::fp8 {

/// State of the recipe `delayed`: the amaxes of the last steps, one column per operand that is quantized.
/// Belongs to the checkpoint: rows and the number of steps.
struct AmaxHistory {
  Tensor rows;  ///< u32 [length, slots], bits of amaxes; row (steps % length) is overwritten next
  int64_t steps =
      0;  ///< advanced so far; while it is below length, the history fills and current scaling is used
  int64_t margin = 0;  ///< scales are divided by 2^margin

  int64_t length() const { return rows.rows(); }
  bool is_full() const { return steps >= length(); }
};

/// The amax, as bits, that a slot is scaled from whose whole history is 0: 1. What comes next has not been
/// seen, and codes of either format then hold values from 1 down to 1e-5 at least; with the smallest scale
/// all of it would saturate at 1e-12.
inline constexpr uint32_t kUnseenAmax = 0x3f800000u;

/// 2^margin times an amax, both as bits: at most the largest float.
uint32_t with_margin(uint32_t amax_bits, int64_t margin);

/// amax [slots] u32, what quantize() takes its scale from: `current`, the bits of this tensor's amax, while
/// the history fills, then 2^margin times the largest of the history (at most the largest float; a NaN or
/// infinity never enters a history; one of zeros gives kUnseenAmax). `current` may be left out once the
/// history is full.
void delayed_amax(Stream& stream, const AmaxHistory& history, const Tensor& current, const Tensor& amax);

/// Once per optimizer step, never in recomputation or validation: overwrites the oldest row with `step_amax`
/// u32 [slots], the largest over micro-batches and ranks, and counts the step. A slot that is not finite
/// keeps the newest row's value (its step is skipped, as non_finite says), and so does one that is 0:
/// nothing went through it, which says nothing of what will.
void advance(Stream& stream, AmaxHistory& history, const Tensor& step_amax);

}  // namespace ottava::fp8
