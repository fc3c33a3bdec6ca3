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
/// What is known of a result. `symmetric`: a and b are one tensor and the product is its own transpose, as x
/// x^T, x^T x and (for a symmetric s) s s are. Then only the blocks on and above the diagonal are multiplied,
/// and what lies above it is copied to below it.
enum class MatmulResult { any, symmetric };

/// out = product, or out += product. a and b share one dtype, f32 or bf16; out is f32 or bf16 (f32 when a is
/// f32); sums are f32, products of bf16 exact. `accumulate` needs an f32 out. Throws ShapeError, also for a
/// tensor without elements. Scratch is the stream's workspace (set_matmul_workspace()). On the CPU,
/// primitives are made once per problem and number of threads; the order of f32 sums depends on that number.
/// bf16 is multiplied directly or widened, as the stream says (MatmulCache::products()).
struct Matmul {
  MatmulKind kind = MatmulKind::forward;
  Tensor a, b, out;
  bool accumulate = false;
  /// symmetric: neither accumulated nor scaled, no blocks of columns
  MatmulResult result = MatmulResult::any;
  /// A factor, in host memory, for the sums before they are rounded or added. Only where
  /// matmul_takes_scale(); null: 1.
  const float* scale = nullptr;
  /// The columns of a that are read and of out that are written, where these are wider than the product's
  /// operand and result.
  ColumnRange a_columns = {}, out_columns = {};
};
void matmul(Stream& stream, const Matmul& args);
/// True if matmul() can scale this product as it makes it (`scale` itself is not looked at): on a CPU that
/// multiplies bf16 directly.
bool matmul_takes_scale(Stream& stream, const Matmul& args);

/// Bytes of workspace that this problem needs on the stream's target with as many threads as it would use
/// now. On `meta`, matmul() tells them to the recorder, which keeps the largest.
int64_t matmul_workspace_bytes(Stream& stream, const Matmul& args);
/// Gives the stream its workspace, u8 [bytes], aligned to 64 bytes (CUDA: 256), which must live as long as
/// the stream uses it. Throws ShapeError for another dtype and MemoryError for another alignment. On the CPU
/// a matmul that needs more throws MemoryError; on CUDA it uses an algorithm that needs no more.
void set_matmul_workspace(Stream& stream, Tensor workspace);

/// y[N,O] += bias[O] for every row, both of one dtype, f32|bf16; and its gradient: dbias[O] f32 += sum_N
/// dy[N,O]. Throw ShapeError.
void add_bias(Stream& stream, const Tensor& y, const Tensor& bias);
void bias_gradient(Stream& stream, const Tensor& dy, const Tensor& dbias);

/// The library that multiplies on this CPU, and how it does bf16, for the start-up report: "oneDNN 2.6.3,
/// bf16 with AMX".
std::string matmul_backend_description();
/// FLOP/s of f32 multiply-adds with the current threads on operands in each core's caches: the peak of the
/// instructions, which no widened product exceeds.
double measure_multiplier_peak_flops();

}  // namespace ottava
