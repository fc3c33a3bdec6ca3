#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "fp8/recipe.h"
#include "fp8/scaled_matmul.h"
#include "parallel/sharding/parameter_spec.h"
#include "tests/fp8/exact_product.h"
#include "tests/fp8/reference.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

// What tests of a linear layer compare with: operands by the reference encoder, and products in FP64 of what
// they decode to.
namespace ottava::test {

/// A matrix that a product read, [outer, contraction]: its codes as the product sees them and what they mean.
struct Operand {
  std::vector<uint8_t> codes;
  std::vector<float> inverses;  ///< per element
  DType format = DType::e4m3;
  int64_t rows = 0, cols = 0;
  Values meaning() const {
    const std::vector<double> table = finite_values(format);
    Values out(codes.size());
    for (size_t i = 0; i < codes.size(); ++i)
      out[i] = (codes[i] & 0x80 ? -1 : 1) * table[codes[i] & 0x7f] * static_cast<double>(inverses[i]);
    return out;
  }
};

/// What a product reads of q: one that contracts the columns of q (forward, and dy in dx) or one that
/// contracts its rows.
enum class Contracts { columns, rows };
inline Operand read(const fp8::Float8Tensor& q, Contracts contracts) {
  const bool is_outer = contracts == Contracts::rows && q.columnwise.empty();
  const fp8::Float8Codes& from = contracts == Contracts::rows && !is_outer ? q.columnwise : q.rowwise;
  const Shape shape = from.codes.shape;
  Operand out{
      .codes = {}, .inverses = {}, .format = from.codes.dtype, .rows = shape.rows(), .cols = shape.cols()};
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) {
      const auto i = static_cast<size_t>(fp8::scale_index(q.granularity, shape, r, c));
      out.codes.push_back(from.codes.as<uint8_t>()[r * out.cols + c]);
      out.inverses.push_back(q.granularity == fp8::Granularity::block_1x32
                                 ? fp8::decode_e8m0(from.scale_inverse.as<uint8_t>()[i])
                                 : from.scale_inverse.as<float>()[i]);
    }
  }
  if (is_outer) {
    out.codes = test::transposed(out.codes, out.rows, out.cols);
    out.inverses = test::transposed(out.inverses, out.rows, out.cols);
    std::swap(out.rows, out.cols);
  }
  return out;
}

inline bool agree(const std::vector<float>& got, const Product& want, Tolerance t) {
  bool is_close = got.size() == want.value.size();
  for (size_t i = 0; is_close && i < got.size(); ++i) {
    is_close = std::abs(got[i] - want.value[i]) <=
               t.stored * std::abs(want.value[i]) + t.arithmetic * want.magnitude[i] + 0x1p-126;
  }
  return is_close;
}

/// The matrix as the reference quantizes it, for a product that contracts its columns, with one scale for
/// `amax`.
inline Operand reference_of_amax(const std::vector<float>& values, int64_t rows, int64_t cols,
                                 const fp8::OperandRecipe& recipe, double amax) {
  Operand out{.codes = {}, .inverses = {}, .format = recipe.format, .rows = rows, .cols = cols};
  const float scale =
      reference_scale(amax, recipe.format, recipe.rounding == fp8::ScaleRounding::down_to_power_of_two);
  const TableEncoder encode(recipe.format);
  for (float v : values) out.codes.push_back(encode(v * scale)), out.inverses.push_back(1.0f / scale);
  return out;
}
inline double largest(const std::vector<float>& values) {
  double amax = 0;
  for (float v : values) amax = std::max(amax, std::abs(static_cast<double>(v)));
  return amax;
}
/// The same with scales for the matrix's own amaxes or, with `amax_factor`, one scale for its amax times
/// this.
inline Operand reference(const std::vector<float>& values, int64_t rows, int64_t cols,
                         const fp8::OperandRecipe& recipe, double amax_factor = 1) {
  if (amax_factor != 1) return reference_of_amax(values, rows, cols, recipe, largest(values) * amax_factor);
  const bool power = recipe.rounding == fp8::ScaleRounding::down_to_power_of_two;
  ReferenceQuantized q = reference_quantize(values, rows, cols, {recipe.format, recipe.granularity, power});
  return {.codes = std::move(q.codes),
          .inverses = std::move(q.inverses),
          .format = recipe.format,
          .rows = rows,
          .cols = cols};
}

inline bool same(const Operand& a, const Operand& b) {
  return a.codes == b.codes && a.inverses == b.inverses;
}

inline std::vector<float> columns_of(const std::vector<float>& all, RowRange columns, int64_t of) {
  std::vector<float> out;
  for (size_t r = 0; r < all.size() / static_cast<size_t>(of); ++r) {
    const auto row = all.begin() + static_cast<int64_t>(r) * of;
    out.insert(out.end(), row + columns.begin, row + columns.end);
  }
  return out;
}
inline std::vector<float> rows_of(const std::vector<float>& all, RowRange rows, int64_t columns) {
  return {all.begin() + rows.begin * columns, all.begin() + rows.end * columns};
}

}  // namespace ottava::test
