#include "tests/support/amx_host/tiles.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ottava::amx_host {
namespace {

constexpr int kTiles = 8, kMostRows = 16, kMostBytes = 64;

struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Config) == 64);

struct Tiles {
  bool configured = false;
  Config config{};
  alignas(64) unsigned char rows[kTiles][kMostRows][kMostBytes] = {};
};
thread_local Tiles tiles;

[[noreturn]] void end(const char* instruction, int tile, const char* fault) {
  std::fprintf(stderr, "AMX: %s of tile %d: %s\n", instruction, tile, fault);
  std::abort();
}

int rows_of(int tile) { return tiles.config.rows[tile]; }
int bytes_of(int tile) { return tiles.config.row_bytes[tile]; }

void check(const char* instruction, int tile) {
  if (tile < 0 || tile >= kTiles) end(instruction, tile, "there are tiles 0 to 7");
  if (!tiles.configured) end(instruction, tile, "this thread has not configured its tiles");
  if (rows_of(tile) == 0 || bytes_of(tile) == 0) end(instruction, tile, "it is not configured");
}

/// As the instruction, whatever this thread's own modes are: round to nearest, subnormal numbers are zero.
class Modes {
 public:
  Modes() { _mm_setcsr(0x1f80 | 0x8040); }
  Modes(const Modes&) = delete;
  ~Modes() { _mm_setcsr(before_); }

 private:
  unsigned before_ = _mm_getcsr();
};

/// Of words that hold two bf16 numbers the first, or the second, as f32.
inline __m512 first_of(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
inline __m512 second_of(__m512i words) {
  return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

}  // namespace

void load_config(const void* config) {
  Config wanted;
  std::memcpy(&wanted, config, sizeof wanted);
  if (wanted.palette != 1 || wanted.start_row != 0) end("LDTILECFG", 0, "palette 1 from row 0 is expected");
  for (int i = 0; i < 16; ++i) {
    const bool used = wanted.rows[i] || wanted.row_bytes[i];
    if (wanted.rows[i] > (i < kTiles ? kMostRows : 0) || wanted.row_bytes[i] > (i < kTiles ? kMostBytes : 0))
      end("LDTILECFG", i, "it is larger than 16 rows of 64 bytes, or there is no such tile");
    if (used && (!wanted.rows[i] || !wanted.row_bytes[i])) end("LDTILECFG", i, "rows or bytes are missing");
  }
  tiles = {};
  tiles.config = wanted;
  tiles.configured = true;
}

void release() { tiles = {}; }

void zero(int tile) {
  check("TILEZERO", tile);
  std::memset(tiles.rows[tile], 0, sizeof tiles.rows[tile]);
}

void load(int tile, const void* base, int64_t stride) {
  zero(tile);
  const char* from = static_cast<const char*>(base);
  for (int i = 0; i < rows_of(tile); ++i, from += stride)
    std::memcpy(tiles.rows[tile][i], from, static_cast<size_t>(bytes_of(tile)));
}

void store(int tile, void* base, int64_t stride) {
  check("TILESTORED", tile);
  char* to = static_cast<char*>(base);
  for (int i = 0; i < rows_of(tile); ++i, to += stride)
    std::memcpy(to, tiles.rows[tile][i], static_cast<size_t>(bytes_of(tile)));
}

void add_products(int sums, int a, int b) {
  check("TDPBF16PS", sums);
  check("TDPBF16PS", a);
  check("TDPBF16PS", b);
  if (rows_of(sums) != rows_of(a)) end("TDPBF16PS", sums, "it has other rows than A");
  if (bytes_of(sums) != bytes_of(b)) end("TDPBF16PS", sums, "it has other columns than B");
  if (bytes_of(a) != 4 * rows_of(b)) end("TDPBF16PS", a, "it has other terms than B");
  if (sums == a || sums == b || a == b) end("TDPBF16PS", sums, "the three tiles are different ones");
  const Modes modes;
  for (int i = 0; i < rows_of(sums); ++i) {
    __m512 row = _mm512_load_ps(tiles.rows[sums][i]);
    for (int p = 0; p < rows_of(b); ++p) {
      int32_t pair;
      std::memcpy(&pair, tiles.rows[a][i] + 4 * p, sizeof pair);
      const __m512i of_a = _mm512_set1_epi32(pair), of_b = _mm512_load_si512(tiles.rows[b][p]);
      row = _mm512_fmadd_ps(first_of(of_a), first_of(of_b), row);
      row = _mm512_fmadd_ps(second_of(of_a), second_of(of_b), row);
    }
    _mm512_store_ps(tiles.rows[sums][i], row);
  }
}

}  // namespace ottava::amx_host
