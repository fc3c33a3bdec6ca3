#pragma once

// The product of panel_product.h and the packing of panels, for kernel files only. Ceiling: the multipliers.
// With AVX-512, 14 x 2 vectors of sums stay in registers, and 28 multiply-adds (14 cycles) need 16 loads, of
// two in each cycle: measured 98% of the instructions' rate where A and B are in the L1 cache.

#include "core/cpu/panel_product.h"
#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

// Vectors of one register: an array of wider ones would not stay in registers.
#if defined(__AVX512F__)
inline constexpr int kRegisterLanes = 16, kSumRows = 14;
#elif defined(__AVX2__)
inline constexpr int kRegisterLanes = 8, kSumRows = 6;
#else
inline constexpr int kRegisterLanes = 4, kSumRows = 6;
#endif
inline constexpr int kSumVectors = 2, kSumColumns = kSumVectors * kRegisterLanes;
typedef float Register __attribute__((vector_size(kRegisterLanes * 4)));

inline Register load_register(const float* p) {
  Register r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}

/// `rows` rows of C and `vectors` vectors of columns, `columns` of which exist.
template <int rows, int vectors>
inline void sum_block(const PanelProduct& t, const float* a, const float* b, float* c, int64_t columns) {
  Register sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) sums[i][j] = Register{};
  }
  for (int64_t p = 0; p < t.k; ++p, a += t.a_depth, b += kPanelColumns) {
    Register columns_of_b[vectors];
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) columns_of_b[j] = load_register(b + j * kRegisterLanes);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Register x = a[i * t.a_row] - Register{};
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) sums[i][j] += x * columns_of_b[j];
    }
  }
  const bool whole = columns >= vectors * kRegisterLanes;
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    float* to = c + i * t.c_row;
    float edge[kSumColumns];
    if (!whole) __builtin_memcpy(edge, to, static_cast<unsigned long>(columns) * sizeof(float));
    float* at = whole ? to : edge;
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      const Register sum = t.accumulate ? load_register(at + j * kRegisterLanes) + sums[i][j] : sums[i][j];
      __builtin_memcpy(at + j * kRegisterLanes, &sum, sizeof sum);
    }
    if (!whole) __builtin_memcpy(to, edge, static_cast<unsigned long>(columns) * sizeof(float));
  }
}

template <int vectors, int rows = kSumRows>
inline void sum_rows(int64_t count, const PanelProduct& t, const float* a, const float* b, float* c,
                     int64_t columns) {
  if (count == rows) return sum_block<rows, vectors>(t, a, b, c, columns);
  if constexpr (rows > 1) sum_rows<vectors, rows - 1>(count, t, a, b, c, columns);
}

/// A part of a panel stays in the L1 cache for all rows; rows are divided evenly, so that no group is small.
inline void multiply(const PanelProduct& t) {
  const int64_t groups = (t.m + kSumRows - 1) / kSumRows;
  for (int64_t column = 0; column < t.n; column += kSumColumns) {
    const float* b = t.b + column / kPanelColumns * t.b_panel + column % kPanelColumns;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = t.m * g / groups, end = t.m * (g + 1) / groups;
      const float* a = t.a + first * t.a_row;
      float* c = t.c + first * t.c_row + column;
      if (t.n - column > kRegisterLanes) {
        sum_rows<kSumVectors>(end - first, t, a, b, c, t.n - column);
      } else {
        sum_rows<1>(end - first, t, a, b, c, t.n - column);
      }
    }
  }
}

/// Rows [0, k) of one panel from B stored as [k,n]: `columns` of each row exist.
template <class T>
inline void pack_panel(const T* from, int64_t stride, int64_t columns, int64_t k, float* to) {
  for (int64_t p = 0; p < k; ++p, from += stride, to += kPanelColumns) {
    if (columns >= kPanelColumns) {
      store(to, load(from));
      store(to + kLanes, load(from + kLanes));
    } else {
      for (int64_t j = 0; j < kPanelColumns; ++j) to[j] = j < columns ? static_cast<float>(from[j]) : 0.0f;
    }
  }
}

/// One stage of a transposition of 16 x 16: blocks of `width` off the diagonal change places.
template <int width>
inline void exchange(Vec& a, Vec& b) {
#define OTTAVA_LANES(take)                                                                            \
  take(0), take(1), take(2), take(3), take(4), take(5), take(6), take(7), take(8), take(9), take(10), \
      take(11), take(12), take(13), take(14), take(15)
#define OTTAVA_UPPER(lane) ((lane)&width ? kLanes + (lane)-width : (lane))
#define OTTAVA_LOWER(lane) ((lane)&width ? kLanes + (lane) : (lane) + width)
  const Vec upper = __builtin_shufflevector(a, b, OTTAVA_LANES(OTTAVA_UPPER));
  b = __builtin_shufflevector(a, b, OTTAVA_LANES(OTTAVA_LOWER));
  a = upper;
#undef OTTAVA_LANES
#undef OTTAVA_UPPER
#undef OTTAVA_LOWER
}
template <int width>
inline void exchange_all(Vec (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & width) == 0) exchange<width>(rows[i], rows[i + width]);
  }
}

/// The same from B stored transposed, as [n,k].
template <class T>
inline void pack_transposed_panel(const T* from, int64_t stride, int64_t columns, int64_t k, float* to) {
  int64_t whole = 0;
#if defined(__AVX512F__)  // elsewhere a stage would be dozens of instructions
  if (columns >= kPanelColumns) {
    whole = k / kLanes * kLanes;
    for (int half = 0; half < kPanelColumns; half += kLanes) {
      for (int64_t p = 0; p < whole; p += kLanes) {
        Vec rows[kLanes];
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) rows[j] = load(from + (half + j) * stride + p);
        exchange_all<8>(rows);
        exchange_all<4>(rows);
        exchange_all<2>(rows);
        exchange_all<1>(rows);
#pragma GCC unroll 16
        for (int j = 0; j < kLanes; ++j) store(to + (p + j) * kPanelColumns + half, rows[j]);
      }
    }
  }
#endif
  constexpr int64_t kBlock = 16;  // rows of k, so that what is written stays in the cache
  for (int64_t first = whole; first < k; first += kBlock) {
    const int64_t end = first + kBlock < k ? first + kBlock : k;
    for (int64_t j = 0; j < kPanelColumns; ++j) {
      for (int64_t p = first; p < end; ++p)
        to[p * kPanelColumns + j] = j < columns ? static_cast<float>(from[j * stride + p]) : 0.0f;
    }
  }
}

}  // namespace ottava::cpu::OTTAVA_ISA
