#pragma once

#include "core/float8/codec.cuh"

// 128 x 128 values in the registers of a block, and their codes on the way to rows and columns of memory. A
// thread has four neighbouring columns of some neighbouring rows. So a warp reads and writes whole rows of
// the tile, its row's 128 columns at a time; a thread measures its columns without asking another; and the
// codes of a column, made two rows at a time, already lie as the transpose has them.
namespace ottava::fp8::cuda {

inline constexpr int kTile = 128;

/// How the warps of a block share a tile, and how many blocks share an SM at least. kWide: rows of x and of
/// all outputs can be moved 16 bytes at a time, so that a thread's four columns exist together or not at all.
template <int kWarpCount, int kBlocksOnSm, bool kIsWide>
struct TileTeam {
  static constexpr int kWarps = kWarpCount, kThreads = 32 * kWarps, kBlocks = kBlocksOnSm;
  static constexpr int kRows = kTile / kWarps;  ///< of a thread
  static constexpr bool kWide = kIsWide;
};
__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x / 32); }

/// A block's tile, and the thread's share of it.
template <class Team>
struct TilePlace {
  int64_t rows, cols;  ///< of the matrix
  int64_t r0, c0;      ///< of the tile
  int64_t row, col;    ///< the thread's first
  int valid;           ///< how many of the thread's rows exist; none if its first column does not
};
template <class Team>
__device__ __forceinline__ TilePlace<Team> place_of(int64_t rows, int64_t cols, int64_t r0, int64_t c0) {
  const int64_t row = r0 + warp_of_thread() * Team::kRows, col = c0 + lane_of_thread() * 4;
  const int64_t valid = col < cols && row < rows ? rows - row : 0;
  return {rows, cols, r0, c0, row, col, valid < Team::kRows ? static_cast<int>(valid) : Team::kRows};
}

/// A thread's values as bf16, two columns to a word, the first in the low half.
template <int kRows>
struct Strip {
  uint32_t pairs[kRows][2];

  __device__ __forceinline__ float at(int row, int j) const {
    const uint32_t pair = pairs[row][j / 2];
    return __uint_as_float(j % 2 ? pair & 0xffff0000u : pair << 16);
  }
  /// The same values, to be unpacked again: floats of all of them would not fit in registers.
  __device__ __forceinline__ Strip again() const {
    Strip same;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      same.pairs[r][0] = forgotten(pairs[r][0]), same.pairs[r][1] = forgotten(pairs[r][1]);
    }
    return same;
  }
};

/// Loads the thread's values, and zeros past the matrix. All loads of a wide team are under way before one is
/// waited for.
template <class Team, class T>
__device__ __forceinline__ Strip<Team::kRows> load_strip(const T* x, int64_t stride,
                                                         const TilePlace<Team>& t) {
  constexpr int kRows = Team::kRows;
  Strip<kRows> strip{};
  const T* p = x + t.row * stride + t.col;
  if constexpr (!Team::kWide) {
#pragma unroll
    for (int r = 0; r < kRows; ++r, p += stride) {
      const auto value = [&](int j) { return r < t.valid && t.col + j < t.cols ? to_float(p[j]) : 0; };
#pragma unroll
      for (int j = 0; j < 2; ++j) strip.pairs[r][j] = pack_bf16(value(2 * j), value(2 * j + 1));
    }
  } else {
    using Loaded = Pack<uint32_t, sizeof(T)>;
    const auto load = [&](const auto& exists) {
      Loaded loaded[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r, p += stride) {
        loaded[r] =
            exists(r) ? load_pack<uint32_t, sizeof(T)>(reinterpret_cast<const uint32_t*>(p), 0) : Loaded{};
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const auto& words = loaded[r].values;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if constexpr (sizeof(T) == 2) {
            strip.pairs[r][j] = words[j];
          } else {
            strip.pairs[r][j] = pack_bf16(__uint_as_float(words[2 * j]), __uint_as_float(words[2 * j + 1]));
          }
        }
      }
    };
    // Most threads have all of their rows; to ask row by row takes a register and an instruction for each.
    if (t.valid == kRows) {
      load([](int) { return true; });
    } else {
      load([&](int r) { return r < t.valid; });
    }
  }
  return strip;
}

/// What a thread knows of the magnitudes in its strip, as pairs of bf16 without signs.
template <int kRows>
struct Largest {
  uint32_t rows[kRows / 2];  ///< of two neighbouring rows, the first in the low half
  uint32_t columns[2];       ///< of its columns

  __device__ __forceinline__ uint32_t bits() const {
    const uint32_t pair = __vmaxu2(columns[0], columns[1]);
    return max(pair << 16, pair & 0xffff0000u);
  }
};
template <int kRows>
__device__ __forceinline__ Largest<kRows> measure(const Strip<kRows>& x) {
  Largest<kRows> m{};
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    uint32_t of_row[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t low = x.pairs[2 * i + k][0] & 0x7fff7fffu, high = x.pairs[2 * i + k][1] & 0x7fff7fffu;
      of_row[k] = __vmaxu2(low, high);
      m.columns[0] = __vmaxu2(m.columns[0], low), m.columns[1] = __vmaxu2(m.columns[1], high);
    }
    m.rows[i] =
        __vmaxu2(__byte_perm(of_row[0], of_row[1], 0x5410), __byte_perm(of_row[0], of_row[1], 0x7632));
  }
  return m;
}
/// Over kLanes neighbouring lanes: lane l gets the pair of rows l % (kRows / 2). Each exchange halves the
/// pairs that a lane still asks about.
template <int kLanes, int kRows>
__device__ __forceinline__ uint32_t largest_of_rows(Largest<kRows> m) {
#pragma unroll
  for (int half = kRows / 4; half > 0; half /= 2) {
    const bool upper = lane_of_thread() & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const uint32_t kept = upper ? m.rows[i + half] : m.rows[i], sent = upper ? m.rows[i] : m.rows[i + half];
      m.rows[i] = __vmaxu2(kept, __shfl_xor_sync(kAllLanes, sent, half));
    }
  }
#pragma unroll
  for (int offset = kRows / 2; offset < kLanes; offset *= 2) {
    m.rows[0] = __vmaxu2(m.rows[0], __shfl_xor_sync(kAllLanes, m.rows[0], offset));
  }
  return m.rows[0];
}

/// The codes of four columns of a row, and of four rows of a column.
template <DType kFormat, int kRows>
__device__ __forceinline__ uint32_t encode_row(const Strip<kRows>& x, int row, float scale) {
  return encode_four<kFormat>(x.pairs[row][0], x.pairs[row][1], scale);
}
template <DType kFormat, int kRows>
__device__ __forceinline__ uint32_t encode_column(const Strip<kRows>& x, int row, int j, float scale) {
  auto pair = [&](int r) { return encode_pair<kFormat>({x.at(r, j), x.at(r + 1, j)}, scale); };
  return pair(row) | pair(row + 2) << 16;
}

/// Whether codes may have lost something: a look at all of them that costs less than counting. Losses are
/// rare: where there are none, nothing is counted.
template <DType kFormat, bool kMaySaturate>
class LossWatch {
 public:
  __device__ __forceinline__ void see(uint32_t codes) {
    const uint32_t magnitudes = codes & ~kHighBits;
    nonzero_ &= magnitudes + 0x7f * kEachByte;
    if constexpr (kMaySaturate) largest_ |= magnitudes + (0x80 - kLargestCode) * kEachByte;
  }
  __device__ __forceinline__ bool suspects() const { return ((~nonzero_ | largest_) & kHighBits) != 0; }

 private:
  static constexpr uint32_t kEachByte = 0x01010101u, kHighBits = 0x80 * kEachByte;
  static constexpr uint32_t kLargestCode = kFormat == DType::e4m3 ? 0x7e : 0x7b;
  uint32_t nonzero_ = kHighBits, largest_ = 0;
};
/// Stores the four codes of the thread's row r at p, if they exist.
template <class Team>
__device__ __forceinline__ void store_row(uint8_t* p, const TilePlace<Team>& t, int r, uint32_t codes) {
  if (r >= t.valid) return;
  if constexpr (Team::kWide) {
    *reinterpret_cast<uint32_t*>(p) = codes;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (t.col + j < t.cols) p[j] = static_cast<uint8_t>(codes >> 8 * j);
    }
  }
}

/// The codes of a tile's columns in shared memory, each in eight chunks of sixteen. Chunk k of column c lies
/// at [c][k ^ c / 4 % 8], so that neither eight threads that write the same rows nor eight that read a column
/// meet in a bank.
using ColumnTile = Codes[kTile][kTile / 16];
/// Puts a thread's codes of column j of its four.
template <class Team>
__device__ __forceinline__ void put_column(ColumnTile& tile, int j,
                                           const uint32_t (&codes)[Team::kRows / 4]) {
  constexpr int kWords = Team::kRows / 4;
  const int first = warp_of_thread() * kWords;
  Codes& chunk = tile[lane_of_thread() * 4 + j][first / 4 ^ lane_of_thread() % 8];
  Pack<uint32_t, kWords> words;
#pragma unroll
  for (int i = 0; i < kWords; ++i) words.values[i] = codes[i];
  store_pack(chunk.values + first % 4, 0, words);
}
/// Writes the tile's columns as rows of `to` [cols, rows]: eight threads fill 128 contiguous bytes. The
/// caller has synchronised after filling the tile.
template <class Team>
__device__ __forceinline__ void store_columns(const ColumnTile& tile, const TilePlace<Team>& t, uint8_t* to) {
  const int chunk = static_cast<int>(threadIdx.x % 8);
  const int64_t row = t.r0 + chunk * 16;
#pragma unroll
  for (int k = 0; k < kTile * 8 / Team::kThreads; ++k) {
    const int c = k * (Team::kThreads / 8) + static_cast<int>(threadIdx.x / 8);
    const int64_t col = t.c0 + c;
    if (col < t.cols)
      store_codes(to + col * t.rows + row, tile[c][chunk ^ c / 4 % 8], t.rows - row, Team::kWide);
  }
}

}  // namespace ottava::fp8::cuda
