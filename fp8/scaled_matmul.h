#pragma once

#include "core/ops/matmul/matmul.h"
#include "fp8/fast_accumulation.h"
#include "fp8/quantize.h"

namespace ottava::fp8 {

/// One of a linear layer's products of row-major x [T,K], W [O,K], dy [T,O] (core/ops/matmul/matmul.h), or
/// out += it; out f32 or bf16, accumulating f32. It reads the codes whose scales run along its contraction:
///   forward          out [T,O] = x W^T    a = x, row-wise       b = W, row-wise
///   input_gradient   out [T,K] = dy W     a = dy, row-wise      b = W, column-wise
///   weight_gradient  out [O,K] = dy^T x   a = dy, column-wise   b = x, column-wise
/// Row-wise codes serve in place of column-wise ones that are not there where scales are transpose-invariant;
/// on a GPU only with `emulate`: tensor cores want the contraction inside, so codes are transposed first
/// (transpose_codes). Pairs of granularities (a, b in either order): tensor with tensor, row with row or
/// tensor, 1x128 with 1x128 or 128x128, 1x32 with 1x32. At most one operand is e5m2. M, N and K are multiples
/// of 16 (1x32: K of 32). Everything else throws ShapeError.
///
/// On the CPU exact but for the sum, which is f32: FP8 values, and FP8 values times powers of two, are bf16
/// values, so this is one bf16 product of the widened operands; scales per tensor and row then multiply the
/// result, which is rounded once. Block scales that are not powers of two, or leave bf16's normal range,
/// throw NumericsError.
///
/// On a GPU by its tensor cores (cuBLASLt), sums in f32 or as `fast` has it. All addresses are aligned to 16
/// bytes. A GPU has per-tensor scales from sm_89 on, rows and blocks of 128 only on sm_90, 1x32 from sm_100
/// on; what it lacks throws DeviceError with what it has. `emulate` asks for the CPU's way on any GPU: exact
/// bf16 operands on the same codes, and bf16's speed. Block scales must then be powers of two, which only the
/// CPU can afford to check. Recorded for a GPU, emulated products count as bf16 FLOPs.
struct ScaledMatmul {
  MatmulKind kind = MatmulKind::forward;  ///< which of the three
  Float8Tensor a, b;
  Tensor out;
  bool accumulate = false;
  bool emulate = false;          ///< changes nothing on the CPU
  ColumnRange out_columns = {};  ///< what is written of out, where it is wider than the result
  FastAccumulation fast = FastAccumulation::forward;
  Tensor workspace;  ///< u8 [scaled_matmul_workspace_bytes()], aligned to 64 bytes; besides the stream's own
};
void scaled_matmul(Stream& stream, const ScaledMatmul& args);

/// Bytes of `workspace` on the stream's target: widened operands and unscaled sums on the CPU and with
/// `emulate`; else nothing, but for rows with a tensor, whose scale is repeated there, and to accumulate
/// products with scales of rows or blocks, which cuBLASLt need not have: then they are made there and added.
int64_t scaled_matmul_workspace_bytes(Stream& stream, const ScaledMatmul& args);
/// What the stream's own workspace must hold for the inner product (set_matmul_workspace).
int64_t scaled_matmul_inner_workspace_bytes(Stream& stream, const ScaledMatmul& args);

}  // namespace ottava::fp8
