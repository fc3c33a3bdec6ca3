#pragma once

#include "fp8/quantize.h"

namespace ottava::fp8 {

/// What is kept of an operand beside its codes, from step to step.
struct OperandSlots {
  Tensor amax;        ///< u32 [1]: raised to the bits of its largest magnitude
  Tensor scale_amax;  ///< u32 [1]: what the scale of a given amax is made from, `amax` or the history's
  Tensor counters;    ///< i64 [3], may be left out; as in Quantize
  Tensor non_finite;  ///< u32 [1], may be left out
};

/// Amaxes of an operand that are there: its producer, or the ranks that share it, have made them.
enum class Measured : uint8_t {
  nothing,
  amax,  ///< slots.amax has been raised
  all,   ///< and column_amax is made
};

/// One operand of FP8 products, in the orientations that they read.
struct QuantizeOperand {
  Tensor x;                    ///< [R,C] f32 or bf16
  ColumnRange x_columns = {};  ///< as in Quantize
  Float8Tensor out;            ///< overwritten
  ScaleRounding rounding = ScaleRounding::none;
  OperandSlots slots;  ///< amax may be left out where groups have their own and `counters` is left out too
  Tensor column_amax;  ///< u32 [C], where takes_column_amax(out)
  Measured measured = Measured::nothing;
};
/// Measures what `out` needs and no producer has measured, then quantizes x in one read (takes_column_amax()
/// with both orientations: two). Groups compute their own amax; with counters the tensor's is raised too,
/// from the same read. Throws ShapeError.
void quantize_operand(Stream& stream, const QuantizeOperand& args);

/// True if the column-wise codes of `out` need amaxes of columns before they are made.
bool takes_column_amax(const Float8Tensor& out);

}  // namespace ottava::fp8
