#pragma once

// Sums of pair_product.h by AMX, for kernel files only. Ceiling: an instruction takes 16 cycles for 16 x 16
// sums of 32 terms; reading a tile takes 8 cycles, writing one 16. Four tiles of sums need a tile of A or B
// for each instruction. Measured on zeros: 99% of the instructions' rate if these come from the L1 cache, 73%
// from the L2 cache; on random numbers 50%. Without fetching panels of B ahead, large products take a tenth
// longer.

#include <immintrin.h>

#include "core/cpu/pair_product.h"

namespace ottava::cpu::OTTAVA_ISA {

inline constexpr int64_t kTile = 16, kTerms = kPairPanel;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void begin_thread() {
  static constexpr TileConfig kWhole;
  _tile_loadconfig(&kWhole);
}
inline void end_thread() { _tile_release(); }

// Registers are named by literals. 0 to 3 are sums.
#define OTTAVA_TILE_BEGIN(tile, c) \
  if (p.accumulate) {              \
    _tile_loadd(tile, c, c_bytes); \
  } else {                         \
    _tile_zero(tile);              \
  }

/// `ahead`: from there on, two lines per tile are fetched meanwhile.
inline void sum_2x2(const PairProduct& p, const bf16* a, const bf16* b, float* c, const bf16* ahead) {
  const int64_t a_bytes = p.a_row * 2, b_bytes = kTerms * 2, c_bytes = p.c_row * 4;
  const bf16* lower = a + kTile * p.a_row;
  float* lower_c = c + kTile * p.c_row;
  OTTAVA_TILE_BEGIN(0, c);
  OTTAVA_TILE_BEGIN(1, c + kTile);
  OTTAVA_TILE_BEGIN(2, lower_c);
  OTTAVA_TILE_BEGIN(3, lower_c + kTile);
  for (int64_t k = 0; k < p.k; k += kTerms, a += p.a_depth, lower += p.a_depth, b += p.b_depth) {
    for (const bf16* tile : {ahead, ahead + p.b_block}) {
      __builtin_prefetch(tile, 0, 2);
      __builtin_prefetch(tile + kTerms, 0, 2);
    }
    ahead += p.b_depth;
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(7, b + p.b_block, b_bytes);
    _tile_loadd(5, lower, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
  _tile_stored(2, lower_c, c_bytes);
  _tile_stored(3, lower_c + kTile, c_bytes);
}

inline void sum_2x1(const PairProduct& p, const bf16* a, const bf16* b, float* c) {
  const int64_t a_bytes = p.a_row * 2, b_bytes = kTerms * 2, c_bytes = p.c_row * 4;
  const bf16* lower = a + kTile * p.a_row;
  OTTAVA_TILE_BEGIN(0, c);
  OTTAVA_TILE_BEGIN(1, c + kTile * p.c_row);
  for (int64_t k = 0; k < p.k; k += kTerms, a += p.a_depth, lower += p.a_depth, b += p.b_depth) {
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(5, lower, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile * p.c_row, c_bytes);
}

inline void sum_1x2(const PairProduct& p, const bf16* a, const bf16* b, float* c) {
  const int64_t a_bytes = p.a_row * 2, b_bytes = kTerms * 2, c_bytes = p.c_row * 4;
  OTTAVA_TILE_BEGIN(0, c);
  OTTAVA_TILE_BEGIN(1, c + kTile);
  for (int64_t k = 0; k < p.k; k += kTerms, a += p.a_depth, b += p.b_depth) {
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(7, b + p.b_block, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
}

inline void sum_1x4(const PairProduct& p, const bf16* a, const bf16* b, float* c) {
  const int64_t a_bytes = p.a_row * 2, b_bytes = kTerms * 2, c_bytes = p.c_row * 4;
  const bf16* next = b + p.b_panel;
  OTTAVA_TILE_BEGIN(0, c);
  OTTAVA_TILE_BEGIN(1, c + kTile);
  OTTAVA_TILE_BEGIN(2, c + 2 * kTile);
  OTTAVA_TILE_BEGIN(3, c + 3 * kTile);
  for (int64_t k = 0; k < p.k; k += kTerms, a += p.a_depth, b += p.b_depth, next += p.b_depth) {
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(5, b, b_bytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b + p.b_block, b_bytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, next, b_bytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, next + p.b_block, b_bytes);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
  _tile_stored(2, c + 2 * kTile, c_bytes);
  _tile_stored(3, c + 3 * kTile, c_bytes);
}

#undef OTTAVA_TILE_BEGIN

/// sum_steps() of so few terms that each tile of sums takes one product: 16 columns are written while the
/// next are summed.
inline bool sum_short_steps(const bf16* a, const bf16* b, int64_t steps, float* c) {
  constexpr int64_t kBytes = kTerms * 2, kRowBytes = kPairPanel * 4, kLower = kTile * kPairPanel;
  _tile_loadd(4, a, kBytes);
  _tile_loadd(5, a + kTile * kTerms, kBytes);
  const bf16* const end = b + steps * kPairPanel * kTerms;
  const auto left_columns = [&] {
    _tile_loadd(6, b, kBytes);
    _tile_zero(0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_zero(1);
    _tile_dpbf16ps(1, 5, 6);
  };
  left_columns();
  for (;; c += kPairPanel * kPairPanel) {
    _tile_loadd(7, b + kTile * kTerms, kBytes);
    _tile_zero(2);
    _tile_dpbf16ps(2, 4, 7);
    _tile_zero(3);
    _tile_dpbf16ps(3, 5, 7);
    _tile_stored(0, c, kRowBytes);
    _tile_stored(1, c + kLower, kRowBytes);
    b += kPairPanel * kTerms;
    if (b != end) left_columns();
    _tile_stored(2, c + kTile, kRowBytes);
    _tile_stored(3, c + kTile + kLower, kRowBytes);
    if (b == end) return true;
  }
}

// GCC 12's intrinsics for loading tiles do not declare that they read memory.
inline void finish_stores() { asm volatile("" ::: "memory"); }

}  // namespace ottava::cpu::OTTAVA_ISA
