#pragma once

#include "core/float8/codec.cuh"

// 128 x 128 codes in shared memory, written row by row and read column by column, by 256 threads.
namespace ottava::fp8::cuda {

inline constexpr int kTile = 128, kTileThreads = 256;
/// A thread handles 16 neighbouring codes of one row in each of four passes over 32 rows.
inline constexpr int kTilePasses = 4, kRowsPerPass = kTileThreads / (kTile / 16);
__device__ __forceinline__ int tile_chunk() { return static_cast<int>(threadIdx.x % 8); }
__device__ __forceinline__ int tile_row(int pass) {
  return pass * kRowsPerPass + static_cast<int>(threadIdx.x / 8);
}

/// Chunk c (16 codes) of row r lies at [r][c ^ r / 16], so that reading neither rows nor columns meets a bank
/// twice.
using CodeTile = Codes[kTile][kTile / 16];
__device__ __forceinline__ void put_codes(CodeTile& tile, int row, int chunk, const Codes& codes) {
  tile[row][chunk ^ row / 16] = codes;
}

/// Where the transpose of a tile goes.
struct TransposedTile {
  uint8_t* to;  ///< [cols, rows]
  int64_t rows, cols, first_row, first_col;
  bool wide;  ///< rows is a multiple of 16 and `to` aligned
};
/// Writes the tile's columns as rows. Every thread takes 16 rows of 4 columns; 8 threads fill 128 contiguous
/// bytes. The caller has synchronised after filling the tile.
__device__ __forceinline__ void store_transposed(const CodeTile& tile, const TransposedTile& t) {
  const int band = static_cast<int>(threadIdx.x % 8), quad = static_cast<int>(threadIdx.x / 8);
  Codes columns[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = tile[band * 16 + q * 4 + i][quad / 4 ^ band].values[quad % 4];
    for_each_column(w, [&](int j, uint32_t codes) { columns[j].values[q] = codes; });
  }
  const int64_t row = t.first_row + band * 16;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t col = t.first_col + quad * 4 + j;
    if (col < t.cols) store_codes(t.to + col * t.rows + row, columns[j], t.rows - row, t.wide);
  }
}

}  // namespace ottava::fp8::cuda
