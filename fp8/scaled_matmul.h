#pragma once

#include "core/ops/matmul/matmul.h"
#include "fp8/quantize.h"

namespace ottava::fp8 {

/// One side of a product: FP8 bytes of a matrix whose rows are the product's outer index and whose columns
/// are the contraction, with scales along the contraction.
struct ScaledOperand {
  Float8Codes matrix;
  Granularity granularity = Granularity::tensor;
  /// Where the contraction lies in memory. `outer`: the bytes are those of the transposed matrix,
  /// [contraction, outer index]; for granularity tensor and 128x128 alone, whose scales do not care. On a GPU
  /// only with `emulate`: tensor cores take `inner`, so that bytes are transposed first (transpose_codes).
  enum class Contraction : uint8_t { inner, outer } contraction = Contraction::inner;
};

/// out[M,N] = (sum_k a(m,k) b(n,k)) * a_inverse * b_inverse, or out += it; out f32 or bf16, accumulating f32.
/// For a linear layer with row-major x [T,K], W [O,K], dy [T,O] (core/ops/matmul/matmul.h) the contraction is
/// inside with
///   forward          a = x [T,K]      b = W [O,K]      out [T,O]
///   input_gradient   a = dy [T,O]     b = W^T [K,O]    out [T,K]
///   weight_gradient  a = dy^T [O,T]   b = x^T [K,T]    out [O,K]
/// Pairs of granularities (a, b in either order): tensor with tensor, row with row or tensor, 1x128 with
/// 1x128 or 128x128, 1x32 with 1x32. At most one operand is e5m2. M, N and K are multiples of 16 (1x32: K of
/// 32). Everything else throws ShapeError.
///
/// On the CPU exact but for the sum, which is f32: FP8 values, and FP8 values times powers of two, are bf16
/// values, so this is one bf16 product of the widened operands; scales per tensor and row then multiply the
/// result, which is rounded once. Block scales that are not powers of two, or leave bf16's normal range,
/// throw NumericsError.
///
/// On a GPU by its tensor cores (cuBLASLt), sums in f32: forward with scales per tensor or row accumulates
/// fast (14 bits between promotions), the others do not. All addresses are aligned to 16 bytes. A GPU has
/// per-tensor scales from sm_89 on, rows and blocks of 128 on sm_90 alone, 1x32 from sm_100 on; what it lacks
/// throws DeviceError with what it has. `emulate` asks for the CPU's way on any GPU: exact bf16 operands on
/// the same bytes, and bf16's speed. Block scales must then be powers of two, which only the CPU can afford
/// to check.
struct ScaledMatmul {
  MatmulKind kind = MatmulKind::forward;  ///< which of the three
  ScaledOperand a, b;
  Tensor out;
  bool accumulate = false;
  bool emulate = false;  ///< changes nothing on the CPU
  Tensor workspace;  ///< u8 [scaled_matmul_workspace_bytes()], aligned to 64 bytes; besides the stream's own
};
void scaled_matmul(Stream& stream, const ScaledMatmul& args);

/// Bytes of `workspace` on the stream's target: widened operands and unscaled sums on the CPU and with
/// `emulate`; else nothing, but for rows with a tensor, whose scale is repeated there.
int64_t scaled_matmul_workspace_bytes(Stream& stream, const ScaledMatmul& args);
/// What the stream's own workspace must hold for the inner product (set_matmul_workspace).
int64_t scaled_matmul_inner_workspace_bytes(Stream& stream, const ScaledMatmul& args);

}  // namespace ottava::fp8
