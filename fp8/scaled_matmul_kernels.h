#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "fp8/scaled_matmul.h"

namespace ottava::fp8 {

/// What a product reads of an operand: the codes whose scales run along the contraction.
struct ProductOperand {
  Float8Codes matrix;
  Granularity granularity = Granularity::tensor;
  /// Which extent of the codes is contracted; `outer`: the codes are [contraction, other index].
  enum class Contraction : uint8_t { inner, outer } contraction = Contraction::inner;
};
/// ScaledMatmul with its operands chosen: out[M,N] = (sum_k a(m,k) b(n,k)) * a_inverse * b_inverse.
struct ScaledProduct {
  MatmulKind kind = MatmulKind::forward;
  ProductOperand a, b;
  Tensor out;
  ColumnRange out_columns = {};
  bool accumulate = false, emulate = false;
  FastAccumulation fast = FastAccumulation::forward;
  Tensor workspace;

  MatrixRows out_rows() const { return rows_of("scaled_matmul", out, out_columns); }
};

/// Scales for one row of a product: its own, and either one for each column or one for all of them.
struct RowScales {
  float row = 1;
  const float* columns = nullptr;  ///< null: all are `column`
  float column = 1;
};
struct ScaledMatmulKernels {
  /// out = sums * (row * column), or out += that; out may be sums.
  cpu::FloatKernel<void(const float* sums, int64_t n, const RowScales& scales, bool accumulate, void* out)>
      scale_row;
};

/// Offset in the workspace at which a product on tensor cores is made before it is added; -1: it accumulates
/// by itself.
int64_t place_of_addend(const ScaledProduct& args);

namespace cuda {
/// The product on tensor cores.
void scaled_matmul(Stream& stream, const ScaledProduct& args);
/// out = sums * (scale of its row * scale of its column), or out += it; scales per row or tensor.
void scale_result(Stream& stream, const ScaledProduct& args, const MatrixRows& sums);
/// Sets all elements of `to`, f32, to the one element of `from`.
void fill_with(Stream& stream, const Tensor& from, const Tensor& to);
}  // namespace cuda

}  // namespace ottava::fp8

OTTAVA_CPU_KERNELS(ottava::fp8::ScaledMatmulKernels, scaled_matmul_kernels)
