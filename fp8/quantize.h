#pragma once

#include "core/column_range.h"
#include "core/float8/float8_tensor.h"
#include "core/float8/formats.h"
#include "core/stream.h"

namespace ottava::fp8 {

/// Raises amax, u32 [1], to the bits of max |x|. x f32 or bf16 of any shape; f32 is rounded to bf16 first, as
/// quantizing does, so that a weight's amax is that of its bf16 copy. With `columns`, only these columns of
/// the matrix x. Throws ShapeError, as everything here does.
void amax(Stream& stream, const Tensor& x, const Tensor& amax, ColumnRange columns = {});
/// Raises amax, u32 [C], to the bits of max |x| of each column of x [R,C]. Ranks exchange these before they
/// quantize columns whose rows they share.
void column_amax(Stream& stream, const Tensor& x, const Tensor& amax, ColumnRange columns = {});

/// out = encode(x * scale) with scale = scale_from_amax(amax of each group). x [R,C] f32 or bf16; f32 is
/// rounded to bf16 first. Overwrites all outputs, padding of the scales included.
struct Quantize {
  Tensor x;
  ColumnRange x_columns = {};  ///< the columns of x to quantize, where x is wider than [R,C]
  Granularity granularity = Granularity::tensor;
  ScaleRounding rounding = ScaleRounding::none;  ///< 1x32 needs down_to_power_of_two
  Tensor amax;  ///< granularity tensor: u32 [1], bits of the amax of all that shares the scale; others
                ///< measure their own
  /// Needed for granularity row with `transposed`: u32 [C], bits of the columns' amaxes, as column_amax()
  /// makes them. Ranks that hold rows of the same columns reduce it first.
  Tensor column_amax;
  Float8Codes out;         ///< may be left out if `transposed` is there
  Float8Codes transposed;  ///< may be left out: [C,R], exactly what quantizing x^T would give, from the same
                           ///< read of x
  /// May be left out: i64 [3], accumulated: the number of elements; of nonzero elements that became zero
  /// (underflow); of elements that would round past the largest number (saturation, infinities and NaN
  /// included). Counted for `out` if it is there, else for `transposed`.
  Tensor counters;
  Tensor non_finite;  ///< may be left out: u32 [1], raised to 1 where a group's amax is infinite or NaN
  /// May be left out: u32 [1], raised to the bits of max |x| as by amax(), but without another read of x.
  Tensor largest;
};
/// Throws ShapeError. Reads x once (twice for granularity row with both outputs) and writes a byte per
/// element and output.
void quantize(Stream& stream, const Quantize& args);

/// y = decode(codes) * inverse, rounded to y's dtype, f32 or bf16. Where scales are powers of two, bf16 is
/// exact too.
void dequantize(Stream& stream, const Float8Codes& x, Granularity granularity, const Tensor& y);

/// to [C,R] = from [R,C], codes of one byte.
void transpose_codes(Stream& stream, const Tensor& from, const Tensor& to);
/// Inverse scales of granularity 128x128 of a matrix [R,C] of this shape, transposed for its transposed
/// codes: from scale_shape(R, C) to scale_shape(C, R), with zeros as padding.
void transpose_block_scales(Stream& stream, const Tensor& from, Shape matrix, const Tensor& to);

}  // namespace ottava::fp8
