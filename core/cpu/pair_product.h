#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "core/cpu/bf16_products.h"
#include "core/cpu/isa.h"

namespace ottava::cpu {

/// Products of bf16 by instructions that multiply two terms of each sum at once. AMX's multiply tiles of 16 x
/// 32 by 32 x 16 numbers and add to 16 x 16 f32 sums, AVX512-BF16's a pair of terms by a row of 16 pairs, of
/// operands that lie the same: a panel is two tiles wide, a tile of B has two terms by turns, [16, 16, 2].
inline constexpr int64_t kPairPanel = 32, kPairTileElements = 512;
inline int64_t whole_pair_panels(int64_t count) { return (count + kPairPanel - 1) / kPairPanel * kPairPanel; }

/// C[m,n] = A[m,k] B[k,n], or C += that. m or n is a multiple of 32, the other and k of 16, where operands
/// have zeros up to a multiple of 32 terms; distances are in elements. Subnormal operands count as zero.
struct PairProduct {
  const bf16* a = nullptr;  ///< terms 32 p to 32 p + 31 of a panel's row i at i * a_row + p * a_depth
  int64_t a_row = 0, a_depth = 0, a_panel = 0;
  const bf16* b = nullptr;  ///< tiles: terms 32 p to 32 p + 31 of a panel's columns 16 j to 16 j + 15 at
                            ///< p * b_depth + j * b_block
  int64_t b_depth = 0, b_block = 0, b_panel = 0;
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
};

struct PairProductKernels {
  /// Around a thread's products: outside it tiles cost nothing when threads change.
  void (*begin_thread)();
  void (*end_thread)();
  void (*multiply)(const PairProduct&);
  /// `rows` of a strided matrix of bf16, of N = rows.cols columns, a multiple of 16, as an operand. Up to
  /// multiples of 32, rows are zeros, and so are columns of the first two.
  using Pack = void(const void* from, int64_t stride, void* to, Rows rows);
  Pack* rows;        ///< [rows / 32][N / 32][32, 32]: an A
  Pack* transposed;  ///< [rows / 16][N / 32] tiles: a B of which rows are columns
  Pack* pairs;       ///< [rows / 32][N / 16] tiles: a B
  Pack* summed;      ///< [rows / 32][N, 32]: an A of which rows are terms
  /// Rows of sums, times a factor, written to a matrix or added to it; by the type of `to`, where bf16 is
  /// rounded to nearest even.
  struct Store {
    const float* from = nullptr;
    int64_t from_stride = 0;
    void* to = nullptr;
    int64_t to_stride = 0;
    float factor = 1;
    bool accumulate = false;  ///< f32 only
  };
  FloatKernel<void(const Store&, Rows)> store;
};

}  // namespace ottava::cpu
OTTAVA_PAIR_KERNELS(PairProductKernels, pair_product_kernels)
namespace ottava::cpu {

/// Held by a thread around its products.
class PairProductThread {
 public:
  PairProductThread() { pair_product_kernels()->begin_thread(); }
  PairProductThread(const PairProductThread&) = delete;
  ~PairProductThread() { pair_product_kernels()->end_thread(); }
};

}  // namespace ottava::cpu
