#pragma once

#include "fp8/quantize.h"

namespace ottava::fp8 {

/// What is kept of an operand from step to step, beside its codes.
struct OperandSlots {
  Tensor amax;        ///< u32 [1]: raised to the bits of its largest magnitude
  Tensor scale_amax;  ///< u32 [1]: from which a given amax's scale is made: `amax`, or the history's
  Tensor counters;    ///< i64 [3], may be left out; as in Quantize
  Tensor non_finite;  ///< u32 [1], may be left out
};

/// Which amaxes of an operand its producer, or the ranks that share it, have made already.
enum class Measured : uint8_t {
  nothing,
  amax,  ///< slots.amax has been raised
  all,   ///< column_amax has been made too
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
/// Measures what `out` needs and no producer has measured, then quantizes x in one read, or in two if
/// takes_column_amax() and both orientations are asked for. Groups compute their own amaxes; with counters,
/// the tensor's amax is raised from the same read. Throws ShapeError.
void quantize_operand(Stream& stream, const QuantizeOperand& args);

/// True if the column-wise codes of `out` need amaxes of columns before they are made.
bool takes_column_amax(const Float8Tensor& out);

}  // namespace ottava::fp8
