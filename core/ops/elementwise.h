#pragma once

#include <cstdint>
#include <vector>

#include "core/column_range.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// destination = source, of the same shape and dtype. On `cuda` also from host to device and back. Throws
/// ShapeError.
void copy(Stream& stream, const Tensor& source, const Tensor& destination);
/// destination = source, converted between f32 and bf16 (round to nearest even) where the dtypes differ, else
/// as copy() does. Throws ShapeError.
void cast(Stream& stream, const Tensor& source, const Tensor& destination);
/// Sets all bytes to zero.
void fill_zero(Stream& stream, const Tensor& tensor);
/// out = a + b, added in f32. All of one shape and of one dtype, f32|bf16, or b bf16 and the others f32. Any
/// of them may alias. Throws ShapeError.
void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out);
/// out = the sum of the addends, added in their order in f32 and rounded once: the same as a sum over ranks
/// by Communicator. All f32 or all bf16, of one shape; out may be one of the addends. Throws ShapeError, also
/// for no addends or more than kMostAddends.
struct AddInOrder {
  std::vector<Tensor> addends;
  Tensor out;
};
inline constexpr size_t kMostAddends = 64;
void add_in_order(Stream& stream, const AddInOrder& args);
/// Copies `columns` of source to the columns of destination from `column` on, converted as by cast().
/// f32|bf16 matrices with the same number of rows. Throws ShapeError.
void copy_columns(Stream& stream, const Tensor& source, ColumnRange columns, const Tensor& destination,
                  int64_t column);
/// out[0] += the sum of x. x f32|bf16, summed in f64 over fixed pieces in order; out f32 [1]. Throws
/// ShapeError.
void sum_into(Stream& stream, const Tensor& x, const Tensor& out);

}  // namespace ottava
