#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// The three matrix products of a linear layer y = x W^T with row-major x [N,K], weight [O,K], y [N,O]:
///   forward          out[N,O]  = a=x[N,K]   b=W[O,K]      (b transposed)
///   input_gradient   out[N,K]  = a=dy[N,O]  b=W[O,K]
///   weight_gradient  out[O,K]  = a=dy[N,O]  b=x[N,K]      (a transposed)
enum class MatmulKind { forward, input_gradient, weight_gradient };

/// out = product, or out += product. a and b share one dtype, f32 or bf16; out is f32 or bf16 (f32 when a is f32);
/// sums are f32. `accumulate` needs an f32 out. Throws ShapeError. Workspace: what the library asks for on the target,
/// from the stream's recorded workspace (set_matmul_workspace).
struct Matmul {
  MatmulKind kind = MatmulKind::forward;
  Tensor a, b, out;
  bool accumulate = false;
};
void matmul(Stream& stream, const Matmul& args);

/// Bytes that the library wants for this problem on the stream's target; on `meta` the recorder collects the maximum.
int64_t matmul_workspace_bytes(Stream& stream, const Matmul& args);
/// Gives the stream its scratchpad, u8 [bytes], 256-byte aligned; it must outlive the stream's use. A matmul that needs
/// more throws MemoryError.
void set_matmul_workspace(Stream& stream, Tensor workspace);

/// y[N,O] += bias[O] (broadcast), same dtype; and its gradient dbias[O] f32 += sum_N dy.
void add_bias(Stream& stream, const Tensor& y, const Tensor& bias);
void bias_gradient(Stream& stream, const Tensor& dy, const Tensor& dbias);

}  // namespace ottava
