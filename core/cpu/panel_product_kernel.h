#pragma once

// The product of panel_product.h and the packing of panels, for kernel files only. Ceiling: the multipliers.
// With AVX-512, 14 x 2 vectors of sums stay in registers, and 28 multiply-adds (14 cycles) need 16 loads, at
// two per cycle. Measured: 98% of the instructions' rate if A and B are in the L1 cache, 83% if B's panels
// come from memory that cores share, 60 to 70% if they are not fetched ahead.

#include "core/cpu/lines_ahead_kernel.h"
#include "core/cpu/panel_product.h"
#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

// Vectors of one register: an array of wider ones would not stay in registers.
inline constexpr int kRegisterLanes = kRegisterBytes / 4, kSumRows = kRegisterLanes == 16 ? 14 : 6;
inline constexpr int kSumVectors = 2, kSumColumns = kSumVectors * kRegisterLanes;
inline constexpr int kGroupLanes = kSumRows <= 8 ? 8 : 16;  ///< of a group of kSumRows rows
using Register = VectorOf<float, kRegisterLanes>;

inline Register load_register(const float* p) { return read_lanes<Register>(p); }
/// Widened.
inline Register load_register(const bf16* p) {
  const auto halves = read_lanes<VectorOf<uint16_t, kRegisterLanes>>(p);
#if defined(__AVX512F__)
  return bits_as<Register>(widen(halves) << 16);
#elif defined(__AVX2__)
  return bits_as<Register>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits_as<__m128i>(halves)), 16));
#else
  const VectorOf<uint32_t, kRegisterLanes> words = {halves[0], halves[1], halves[2], halves[3]};
  return bits_as<Register>(words << 16);
#endif
}

/// The same value, with its origin hidden from the compiler.
template <class T>
inline T opaque(T value) {
  asm("" : "+r"(value));
  return value;
}

/// Where panels of B are: in the core's caches, or further away, so that the next one is fetched while one is
/// multiplied. `grouped`: near, and A lies in groups, as pack_groups() makes them.
enum class Panels { near, grouped, far };

inline constexpr int64_t kTermsPerLine = 4, kLineBytes = 64;

/// `rows` rows and `vectors` vectors of columns of C, all of which exist. `ahead`, if panels are far: lines
/// to be fetched meanwhile, one for every kTermsPerLine terms.
template <Panels panels, int rows, int vectors>
inline void sum_block(const PanelProduct& t, const float* a, const float* b, float* c, int64_t c_row,
                      const char* ahead) {
  Register sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) sums[i][j] = Register{};
  }
  const int64_t a_row = panels == Panels::grouped ? 1 : t.a_row,
                a_depth = panels == Panels::grouped ? kGroupLanes : t.a_depth;
  // A row's address is one of two pointers plus a multiple of one of three distances, which x86 addressing
  // scales. A distance for every row would need more registers than there are, and a fifth of the time would
  // go into reloading them.
  constexpr int kHalf = (rows + 1) / 2;
  static_assert(kHalf <= 7);
  constexpr int64_t kSize = sizeof(float);
  const int64_t row = opaque(a_row * kSize), row3 = opaque(3 * row), row5 = opaque(5 * row),
                depth = a_depth * kSize;
  const auto at = [&](const char* first, int i) {
    float x;
    __builtin_memcpy(&x, first + (i == 5 ? row5 : i % 3 == 0 ? i / 3 * row3 : i * row), sizeof x);
    return x;
  };
  const char* upper = reinterpret_cast<const char*>(a);
  const char* lower = opaque(upper + kHalf * row);
  for (int64_t p = 0; p < t.k; ++p, upper += depth, lower += depth, b += t.b_depth) {
    if constexpr (panels == Panels::far) {
      if (p % kTermsPerLine == 0) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += kLineBytes;
      }
    }
    Register columns_of_b[vectors];
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) columns_of_b[j] = load_register(b + j * kRegisterLanes);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Register x = at(i < kHalf ? upper : lower, i % kHalf) - Register{};
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) sums[i][j] += x * columns_of_b[j];
    }
  }
  const bool accumulate = t.accumulate;  // read once: the compiler cannot know that C does not hold it
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i, c = opaque(c + c_row)) {
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) {
      if (accumulate) sums[i][j] += load_register(c + j * kRegisterLanes);
      __builtin_memcpy(c + j * kRegisterLanes, &sums[i][j], sizeof(Register));
    }
  }
}

/// Operands and sums of one block of rows of a panel.
struct SumBlock {
  const float* a;
  const float* b;
  float* c;
  int64_t c_row;
  const char* ahead;  ///< as sum_block() has it
};

template <Panels panels, int vectors, int rows = kSumRows>
inline void sum_rows(int64_t count, const PanelProduct& t, const SumBlock& block) {
  if (count == rows)
    return sum_block<panels, rows, vectors>(t, block.a, block.b, block.c, block.c_row, block.ahead);
  if constexpr (rows > 1) sum_rows<panels, vectors, rows - 1>(count, t, block);
}

/// The same where only `columns` columns of C exist.
template <Panels panels, int vectors>
inline void sum_edge(int64_t count, const PanelProduct& t, SumBlock block, int64_t columns) {
  float whole[kSumRows * kSumColumns] = {};
  float* c = block.c;
  for (int64_t i = 0; t.accumulate && i < count; ++i) {
    for (int64_t j = 0; j < columns; ++j) whole[i * kSumColumns + j] = c[i * t.c_row + j];
  }
  block.c = whole, block.c_row = kSumColumns;
  sum_rows<panels, vectors>(count, t, block);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * t.c_row + j] = whole[i * kSumColumns + j];
  }
}

/// Rows are divided evenly into groups, so that none is small; one group needs no division, which attention's
/// parts with their short sums would notice.
inline int64_t groups_of(int64_t rows) { return rows <= kSumRows ? 1 : (rows + kSumRows - 1) / kSumRows; }
inline int64_t end_of_group(int64_t group, int64_t groups, int64_t rows) {
  return group + 1 == groups ? rows : rows * (group + 1) / groups;
}

/// `ahead` is a panel of B; each group fetches a part of it, and of the lines.
template <Panels panels, int vectors>
inline void sum_columns(const PanelProduct& t, const float* b, float* c, int64_t columns, const float* ahead,
                        LinesAhead* lines) {
  constexpr int64_t kRowBytes = kPanelColumns * sizeof(float);
  const int64_t groups = groups_of(t.m), panel_bytes = t.k * kRowBytes,
                group_bytes = t.k / kTermsPerLine * kLineBytes;
  for (int64_t g = 0, first = 0, end = 0; g < groups; ++g, first = end) {
    end = end_of_group(g, groups, t.m);
    const int64_t count = end - first, fetched = g * group_bytes;
    if constexpr (panels != Panels::near) lines[0].fetch(), lines[1].fetch();
    const float* a = panels == Panels::grouped ? t.a + g * t.k * kGroupLanes : t.a + first * t.a_row;
    const SumBlock block{a, b, c + first * t.c_row, t.c_row,
                         reinterpret_cast<const char*>(ahead) + (fetched < panel_bytes ? fetched : 0)};
    if (columns >= vectors * kRegisterLanes) {
      sum_rows<panels, vectors>(count, t, block);
    } else {
      sum_edge<panels, vectors>(count, t, block, columns);
    }
  }
}

/// A part of a panel stays in the L1 cache for all rows. Panels that are far are fetched into the L2 cache
/// ahead of time; otherwise the first rows would wait for them.
template <Panels panels>
inline void multiply(const PanelProduct& t) {
  const int64_t calls = panels == Panels::near ? 1 : (t.n + kSumColumns - 1) / kSumColumns * groups_of(t.m);
  LinesAhead lines[] = {{t.ahead[0], calls}, {t.ahead[1], calls}};
  for (int64_t column = 0; column < t.n; column += kSumColumns) {
    const float* panel = t.b + column / kPanelColumns * t.b_panel;
    const float* b = panel + column % kPanelColumns;
    // The last panel is followed by the first one's next terms. Fetching what does not exist does no harm.
    const bool is_last = column / kPanelColumns == (t.n - 1) / kPanelColumns;
    const float* ahead = t.b_depth != kPanelColumns ? panel
                         : is_last                  ? t.b + t.k * t.b_depth
                                                    : panel + t.b_panel;
    if (t.n - column > kRegisterLanes) {
      sum_columns<panels, kSumVectors>(t, b, t.c + column, t.n - column, ahead, lines);
    } else {
      sum_columns<panels, 1>(t, b, t.c + column, t.n - column, ahead, lines);
    }
  }
}

/// Packs terms [0, k) of `rows` rows of A, stored by terms as [k,rows], in groups of rows. A term's numbers
/// of a group lie side by side and take kGroupLanes.
inline void pack_groups(const bf16* from, int64_t stride, int64_t rows, int64_t k, float* to) {
  const int64_t groups = groups_of(rows);
  for (int64_t g = 0, first = 0, end = 0; g < groups; ++g, first = end) {
    end = end_of_group(g, groups, rows);
    const bool is_whole = first + kGroupLanes <= rows;  // what the lanes hold behind a group does not count
    for (int64_t p = 0; p < k; ++p, to += kGroupLanes) {
      const bf16* row = from + p * stride + first;
      if (is_whole) {
#pragma GCC unroll 2
        for (int i = 0; i < kGroupLanes; i += kRegisterLanes) write_lanes(to + i, load_register(row + i));
      } else {
        bf16 copy[kGroupLanes];
        __builtin_memcpy(static_cast<void*>(copy), row, (end - first) * sizeof(bf16));
        for (int i = 0; i < kGroupLanes; i += kRegisterLanes) write_lanes(to + i, load_register(copy + i));
      }
    }
  }
}

/// Packs rows [0, k) of one panel from B stored as [k,n]; `columns` elements of each row exist.
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

/// One stage of a transposition: blocks of `width` off the diagonal change places.
template <int width, class R>
inline R upper_rows(R a, R b) {
  constexpr int n = kLanesOf<R>;
#define OTTAVA_LANE(i) ((i)&width ? n + (i)-width : (i))
  OTTAVA_SHUFFLED(a, b, OTTAVA_LANE)
#undef OTTAVA_LANE
}
template <int width, class R>
inline R lower_rows(R a, R b) {
  constexpr int n = kLanesOf<R>;
#define OTTAVA_LANE(i) ((i)&width ? n + (i) : (i) + width)
  OTTAVA_SHUFFLED(a, b, OTTAVA_LANE)
#undef OTTAVA_LANE
}
template <int width>
inline void exchange_all(Register (&rows)[kRegisterLanes]) {
  if constexpr (width < kRegisterLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kRegisterLanes; ++i) {
      if ((i & width) != 0) continue;
      Register &a = rows[i], &b = rows[i + width];
      const Register upper = upper_rows<width>(a, b);
      b = lower_rows<width>(a, b);
      a = upper;
    }
  }
}

/// rows[j][i] becomes rows[i][j].
inline void transpose(Register (&rows)[kRegisterLanes]) {
  exchange_all<8>(rows);
  exchange_all<4>(rows);
  exchange_all<2>(rows);
  exchange_all<1>(rows);
}

/// to[j,i] = from[i,j] for 16 x 16 elements, in squares of a register's lanes.
template <class T>
inline void transpose_square(const T* from, int64_t from_row, float* to, int64_t to_row) {
  for (int i = 0; i < kLanes; i += kRegisterLanes) {
    for (int j = 0; j < kLanes; j += kRegisterLanes) {
      Register rows[kRegisterLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kRegisterLanes; ++r) rows[r] = load_register(from + (i + r) * from_row + j);
      transpose(rows);
#pragma GCC unroll 16
      for (int r = 0; r < kRegisterLanes; ++r) write_lanes(to + (j + r) * to_row + i, rows[r]);
    }
  }
}

/// The same from B stored transposed, as [n,k].
template <class T>
inline void pack_transposed_panel(const T* from, int64_t stride, int64_t columns, int64_t k, float* to) {
  const int64_t given = columns < kPanelColumns ? columns : kPanelColumns, squares = given / kLanes * kLanes,
                whole = k / kLanes * kLanes;
  for (int64_t half = 0; half < squares; half += kLanes) {
    for (int64_t p = 0; p < whole; p += kLanes)
      transpose_square(from + half * stride + p, stride, to + p * kPanelColumns + half, kPanelColumns);
  }
  constexpr int64_t kBlock = 16;  // rows of k, so that what is written stays in the cache
  const auto pack_rest = [&](int64_t begin, int64_t rows_end, int64_t column) {
    for (int64_t first = begin; first < rows_end; first += kBlock) {
      const int64_t end = first + kBlock < rows_end ? first + kBlock : rows_end;
      for (int64_t p = first; p < end; ++p) {
        for (int64_t j = column; j < kPanelColumns; j += kLanes) store(to + p * kPanelColumns + j, Vec{});
      }
      for (int64_t j = column; j < given; ++j) {
        for (int64_t p = first; p < end; ++p)
          to[p * kPanelColumns + j] = static_cast<float>(from[j * stride + p]);
      }
    }
  };
  if (squares < kPanelColumns) pack_rest(0, whole, squares);
  pack_rest(whole, k, 0);
}

}  // namespace ottava::cpu::OTTAVA_ISA
