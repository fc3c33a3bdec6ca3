#pragma once

#include <string>
#include <string_view>

#include "core/column_range.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// The three matrix products of a linear layer y = x W^T with row-major x [N,K], weight [O,K], y [N,O]:
///   forward          out[N,O]  = a=x[N,K]   b=W[O,K]      (b transposed)
///   input_gradient   out[N,K]  = a=dy[N,O]  b=W[O,K]
///   weight_gradient  out[O,K]  = a=dy[N,O]  b=x[N,K]      (a transposed)
enum class MatmulKind { forward, input_gradient, weight_gradient };
/// "forward", "input gradient", "weight gradient".
std::string_view name_of(MatmulKind kind);
/// What is known of a product. `symmetric`: it is its own transpose, as x x^T, x^T x and s s of a symmetric s
/// are; a and b are one tensor. What is on and above the diagonal is multiplied, in blocks, and copied to
/// below it.
enum class MatmulResult { any, symmetric };

/// out = product, or out += product. a and b share one dtype, f32 or bf16; out is f32 or bf16 (f32 when a is
/// f32); sums are f32, products of bf16 exact. `accumulate` needs an f32 out. Throws ShapeError, also for a
/// tensor without elements. Scratch is the stream's workspace (set_matmul_workspace). CPU: primitives are
/// made once per problem and number of threads, which the sums of f32 depend on; bf16 is multiplied directly
/// or widened, as the stream says (MatmulCache::products).
struct Matmul {
  MatmulKind kind = MatmulKind::forward;
  Tensor a, b, out;
  bool accumulate = false;
  MatmulResult result =
      MatmulResult::any;  ///< symmetric: neither accumulated nor scaled, no blocks of columns
  /// On the host: multiplies the sums before they are rounded or added. Only where matmul_takes_scale();
  /// null: 1.
  const float* scale = nullptr;
  /// What is read of a and written of out, where they are wider than the product's operand and result.
  ColumnRange a_columns = {}, out_columns = {};
};
void matmul(Stream& stream, const Matmul& args);
/// True if matmul() can scale this product as it makes it (`scale` itself is not looked at): on a CPU that
/// multiplies bf16 directly.
bool matmul_takes_scale(Stream& stream, const Matmul& args);

/// Bytes that this problem needs on the stream's target with as many threads as it would use now; matmul on
/// `meta` gives the maximum to the recorder.
int64_t matmul_workspace_bytes(Stream& stream, const Matmul& args);
/// Gives the stream its scratchpad, u8 [bytes], aligned to 64 bytes (CUDA: 256); it must outlive the stream's
/// use. A matmul that needs more throws MemoryError.
void set_matmul_workspace(Stream& stream, Tensor workspace);

/// y[N,O] += bias[O] (broadcast), same dtype; and its gradient dbias[O] f32 += sum_N dy.
void add_bias(Stream& stream, const Tensor& y, const Tensor& bias);
void bias_gradient(Stream& stream, const Tensor& dy, const Tensor& dbias);

/// What multiplies bf16 on this CPU, for the start-up report: "oneDNN 2.6.3, bf16 with AMX".
std::string matmul_backend_description();
/// FLOP/s of f32 multiply-adds with the current threads on operands in each core's caches: the instructions'
/// peak, which no widened product passes.
double measure_multiplier_peak_flops();

}  // namespace ottava
