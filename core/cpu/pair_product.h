#pragma once

#include <cstdint>

#include "core/bf16.h"
#include "core/cpu/bf16_products.h"
#include "core/cpu/isa.h"
#include "core/cpu/lines_ahead.h"

namespace ottava::cpu {

/// Products of bf16 by instructions that multiply two terms of each sum at once. AMX multiplies tiles of 16 x
/// 32 by 32 x 16 numbers and adds to 16 x 16 f32 sums; AVX512-BF16 multiplies a pair of terms by a row of 16
/// pairs. Both take the same operands: a panel is two tiles wide, and a tile of B alternates two terms, [16,
/// 16, 2].
inline constexpr int64_t kPairPanel = 32, kPairTileElements = 512;
inline int64_t whole_pair_panels(int64_t count) { return (count + kPairPanel - 1) / kPairPanel * kPairPanel; }

/// C[m,n] = A[m,k] B[k,n], or C += that. One of m and n is a multiple of 32, the other one and k of 16;
/// operands have zeros up to a multiple of 32 terms. Distances are in elements. Subnormal operands count as
/// zero.
struct PairProduct {
  const bf16* a = nullptr;  ///< terms 32 p to 32 p + 31 of a panel's row i at i * a_row + p * a_depth
  int64_t a_row = 0, a_depth = 0, a_panel = 0;
  const bf16* b = nullptr;  ///< tiles: terms 32 p to 32 p + 31 of a panel's columns 16 j to 16 j + 15 at
                            ///< p * b_depth + j * b_block
  int64_t b_depth = 0, b_block = 0, b_panel = 0;
  const bf16* b_after = nullptr;  ///< B of the next product, of which multiply_to() may fetch the first panel
  float* c = nullptr;
  int64_t c_row = 0;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  MatrixAhead ahead[2];
};

/// Kernels of such products, and the packing of their operands.
struct PairProductKernels {
  /// Called around a thread's products, so that elsewhere AMX's tiles cost nothing when threads are switched.
  void (*begin_thread)();
  void (*end_thread)();
  void (*multiply)(const PairProduct&);
  /// Packs `rows` of a strided bf16 matrix with N = rows.cols columns (a multiple of 16) as an operand. Fills
  /// with zeros up to multiples of 32: rows in all five, columns in the first two.
  using Pack = void(const void* from, int64_t stride, void* to, Rows rows);
  Pack* rows;        ///< [rows / 32][N / 32][32, 32]: an A
  Pack* transposed;  ///< [rows / 16][N / 32] tiles: a B of which rows are columns
  Pack* pairs;       ///< [rows / 32][N / 16] tiles: a B
  Pack* rounded;     ///< as `pairs`, for an A of RoundedTerms, which have an order of their own
  Pack* summed;      ///< [rows / 32][N, 32]: an A of which rows are terms
  /// Where sums, times a factor, are written to or added; bf16 is rounded to nearest even.
  struct Result {
    void* to = nullptr;
    int64_t stride = 0;
    float factor = 1;
    bool accumulate = false;  ///< f32 only
  };
  /// multiply(), and then the sums' rows and columns that exist are written to a result of that type, if
  /// there is one. C holds the sums of the terms before, and is where they are left without a result.
  FloatKernel<void(const PairProduct&, const Result*, Rows)> multiply_to;
  /// True if multiply_to() keeps sums in registers until they are written: then C is not needed where all
  /// terms are summed at once, and more terms at once cost nothing.
  bool writes_from_registers = false;
};

}  // namespace ottava::cpu
OTTAVA_PAIR_KERNELS(PairProductKernels, pair_product_kernels)
namespace ottava::cpu {

/// To be held by a thread around its products.
class PairProductThread {
 public:
  PairProductThread() { pair_product_kernels()->begin_thread(); }
  PairProductThread(const PairProductThread&) = delete;
  ~PairProductThread() { pair_product_kernels()->end_thread(); }
};

}  // namespace ottava::cpu
