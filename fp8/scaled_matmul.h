#pragma once

#include "core/ops/matmul/matmul.h"
#include "fp8/fast_accumulation.h"
#include "fp8/quantize.h"

namespace ottava::fp8 {

/// One of a linear layer's products of row-major x [T,K], W [O,K], dy [T,O] (core/ops/matmul/matmul.h), or
/// out += it; out f32 or bf16, accumulating f32. A product reads the codes whose scales run along its
/// contraction:
///   forward          out [T,O] = x W^T    a = x, row-wise       b = W, row-wise
///   input_gradient   out [T,K] = dy W     a = dy, row-wise      b = W, column-wise
///   weight_gradient  out [O,K] = dy^T x   a = dy, column-wise   b = x, column-wise
/// Where column-wise codes are missing and scales are transpose-invariant, row-wise codes serve instead. On a
/// GPU they do so only with `emulate`: tensor cores need the contraction in the inner extent, so codes must
/// be transposed first (transpose_codes()). Pairs of granularities (a, b in either order): tensor with
/// tensor, row with row or tensor, 1x128 with 1x128 or 128x128, 1x32 with 1x32. At most one operand is e5m2.
/// M, N and K are multiples of 16 (1x32: K of 32). Everything else throws ShapeError; a workspace that is
/// too small throws MemoryError.
///
/// On the CPU everything is exact except the f32 sum. FP8 values, and FP8 values times powers of two, are
/// bf16 values, so this is one bf16 product of the widened operands; scales per tensor and row then multiply
/// the result, which is rounded once. Block scales that are not powers of two, or that leave bf16's normal
/// range, throw NumericsError.
///
/// On a GPU tensor cores do the product (cuBLASLt), with sums in f32 or as `fast` says. All addresses are
/// aligned to 16 bytes. A GPU has per-tensor scales from sm_89 on, rows and blocks of 128 only on sm_90, 1x32
/// only on sm_100 and sm_103; asking for what it lacks throws DeviceError, which lists what it has. `emulate`
/// asks for the CPU's way on any GPU: exact bf16 operands from the same codes, at bf16's speed. Block scales
/// must then be powers of two, which only the CPU can afford to check. Recorded for a GPU, emulated products
/// count as bf16 FLOPs.
struct ScaledMatmul {
  MatmulKind kind = MatmulKind::forward;  ///< which of the three
  Float8Tensor a, b;
  Tensor out;
  bool accumulate = false;
  bool emulate = false;          ///< changes nothing on the CPU
  ColumnRange out_columns = {};  ///< the columns of out to write, where it is wider than the result
  FastAccumulation fast = FastAccumulation::forward;
  Tensor workspace;  ///< u8 [scaled_matmul_workspace_bytes()], aligned to 64 bytes; not the stream's own
};
void scaled_matmul(Stream& stream, const ScaledMatmul& args);

/// Bytes of `workspace` on the stream's target. The CPU and `emulate` keep widened operands and unscaled sums
/// there. Tensor cores need it in two cases: for a product of rows with a tensor, whose scale is repeated
/// there; and to accumulate products with row or block scales, which cuBLASLt may not support: they are made
/// there and then added. Else 0.
int64_t scaled_matmul_workspace_bytes(Stream& stream, const ScaledMatmul& args);
/// Bytes that the stream's own workspace (set_matmul_workspace()) must have for the inner product.
int64_t scaled_matmul_inner_workspace_bytes(Stream& stream, const ScaledMatmul& args);

}  // namespace ottava::fp8
