#pragma once

#include <cstdint>
#include <vector>

#include "core/column_range.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// destination = source, of one shape and dtype. Also host to device and back on `cuda`. Throws ShapeError.
void copy(Stream& stream, const Tensor& source, const Tensor& destination);
/// destination = source, converted (f32 and bf16, round to nearest even) where their dtypes differ, else as
/// copy() does.
void cast(Stream& stream, const Tensor& source, const Tensor& destination);
/// All bytes zero.
void fill_zero(Stream& stream, const Tensor& tensor);
/// out = a + b, f32 inside, f32|bf16, any aliasing; all of one dtype, or b bf16 and the others f32.
void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out);
/// out = the sum of the addends, in their order, f32 inside and rounded once: what Communicator makes of a
/// sum over ranks. All f32 or all bf16, of one shape; out may be one of them. Throws ShapeError, also for
/// none or more than kMostAddends.
struct AddInOrder {
  std::vector<Tensor> addends;
  Tensor out;
};
inline constexpr size_t kMostAddends = 64;
void add_in_order(Stream& stream, const AddInOrder& args);
/// Columns of destination from `column` on = those columns of source, converted as by cast: f32|bf16 matrices
/// with the same rows.
void copy_columns(Stream& stream, const Tensor& source, ColumnRange columns, const Tensor& destination,
                  int64_t column);
/// out[0] += sum of x (f32|bf16), summed in f64 over fixed pieces in order; out f32 [1].
void sum_into(Stream& stream, const Tensor& x, const Tensor& out);

}  // namespace ottava
