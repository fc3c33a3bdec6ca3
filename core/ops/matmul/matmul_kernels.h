#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cpu/isa.h"
#include "core/cpu/panel_product.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {

/// What the CPU's products need besides multiplying.
struct MatmulKernels {
  /// A block of bf16 as f32, and back with rounding to nearest even. Strides are in elements.
  void (*widen)(const bf16* from, int64_t from_stride, float* to, int64_t to_stride, cpu::Rows block);
  /// The same, transposed: the block's rows become columns.
  void (*widen_transposed)(const bf16* from, int64_t from_stride, float* to, int64_t to_stride,
                           cpu::Rows block);
  void (*narrow)(const float* from, int64_t from_stride, bf16* to, int64_t to_stride, cpu::Rows block);
  /// One panel of B [k,n], widened; `columns` of its columns exist. B is stored as [k,n], or transposed as
  /// [n,k].
  using Pack = void(const bf16* from, int64_t stride, int64_t columns, int64_t k, float* to);
  Pack *pack, *pack_transposed;
  void (*multiply)(const cpu::PanelProduct&);
  /// The same with an A that lies in groups of rows, and how it is packed: terms [0, k) of rows of bf16 that
  /// are stored by terms, [k,rows], into groups_bytes(rows, k).
  void (*multiply_groups)(const cpu::PanelProduct&);
  void (*pack_groups)(const bf16* from, int64_t stride, int64_t rows, int64_t k, float* to);
  int64_t (*groups_bytes)(int64_t rows, int64_t k);
  /// For some rows of a square matrix: copies what is above the diagonal to below it.
  cpu::FloatKernel<void(const Tensor& x, cpu::Rows)> mirror;
  cpu::FloatKernel<void(const Tensor& y, const Tensor& bias, cpu::Rows)> add_bias;
  cpu::FloatKernel<void(const Tensor& dy, const Tensor& dbias, cpu::Columns)> bias_gradient;
};

/// Operands that may be blocks of columns.
inline MatrixRows a_of(const Matmul& args) { return rows_of("matmul", args.a, args.a_columns); }
inline MatrixRows out_of(const Matmul& args) { return rows_of("matmul", args.out, args.out_columns); }

/// Calls body(begin, end) for the bands of rows from which a symmetric result [k,k] is made; of each, the
/// columns from `begin` on are multiplied. At most 4 bands, of at least `least` rows unless k is smaller.
template <class Body>
void for_each_band(int64_t k, int64_t least, Body&& body) {
  const int64_t bands = std::clamp<int64_t>(k / least, 1, 4), rows = ((k + bands - 1) / bands + 63) / 64 * 64;
  for (int64_t begin = 0; begin < k; begin += rows) body(begin, std::min(begin + rows, k));
}

namespace cpu {
/// Widens the operands to f32, where products are exact, and multiplies there. a and b bf16, out f32 or bf16.
/// Bitwise the same for any number of threads.
void matmul_widened(Stream& stream, const Matmul& args);
int64_t matmul_widened_workspace_bytes(const Matmul& args);
/// Widened gradients of weights in f32 that the threads can sum in their caches, a block each: true if args
/// are one. The bits are those of matmul_widened(), which calls it.
bool widens_gradient_by_blocks(const Matmul& args);
void widened_gradient(Stream& stream, const Matmul& args);
int64_t widened_gradient_workspace_bytes(const Matmul& args);
/// The stream's workspace, after a check that it has `bytes` bytes. Throws MemoryError.
void* matmul_workspace(const Stream& stream, int64_t bytes);
}  // namespace cpu

namespace cuda {
void matmul(Stream& stream, const Matmul& args);
/// x [k,k], in place: copies what is above the diagonal to below it.
void mirror(Stream& stream, const Tensor& x);
void set_matmul_workspace(Stream& stream, Tensor workspace);
void add_bias(Stream& stream, const Tensor& y, const Tensor& bias);
void bias_gradient(Stream& stream, const Tensor& dy, const Tensor& dbias);
/// The cap given to cuBLASLt; the plan names it on any machine.
inline constexpr int64_t kMatmulWorkspaceBytes = int64_t{32} << 20;
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::MatmulKernels, matmul_kernels)
