#include "fp8/scale_tiles.h"

#include <algorithm>

#include "core/check.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"
#include "fp8/scale_tiles_kernels.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kUntile = "untile_scales", kTile = "tile_scales";
constexpr int64_t kTileRows = 128;

void check(std::string_view op, const MxScales& a) {
  const PlainScales plain = plain_scales(a);
  check_tensor(op, "tiles", a.tiles, DType::e8m0,
               scale_shape(Granularity::block_1x32, a.matrix.rows(), a.matrix.cols()));
  check_tensor(op, "plain", a.plain, DType::e8m0,
               plain.rows_outside ? Shape{plain.rows, plain.blocks} : Shape{plain.blocks, plain.rows});
}

/// copy(byte of the tiles, byte of the plain order) for every scale; `begin` with each row of tiles before
/// it.
template <class Begin, class Copy>
void for_each_scale(const MxScales& a, Begin&& begin, Copy&& copy) {
  const PlainScales plain = plain_scales(a);
  const ScaleLayout tiled(Granularity::block_1x32, a.matrix.rows(), a.matrix.cols());
  const int64_t tile_row_bytes = a.tiles.shape[1] * a.tiles.shape[2];
  uint8_t *tiles = a.tiles.as<uint8_t>(), *list = a.plain.as<uint8_t>();
  parallel_for(a.tiles.shape[0], 1, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) {
      begin(tiles + tile * tile_row_bytes, tile_row_bytes);
      for (int64_t r = tile * kTileRows; r < std::min((tile + 1) * kTileRows, plain.rows); ++r) {
        for (int64_t b = 0; b < plain.blocks; ++b) copy(tiles[tiled(r, b * 32)], list[plain(r, b)]);
      }
    }
  });
}

int64_t bytes_of(const MxScales& a) { return a.tiles.bytes() + a.plain.bytes(); }

}  // namespace

void untile_scales(Stream& stream, const MxScales& a) {
  check(kUntile, a);
  const auto on_cpu = [&] {
    for_each_scale(
        a, [](uint8_t*, int64_t) {}, [](uint8_t tile, uint8_t& plain) { plain = tile; });
  };
  run_op(stream, moving(kUntile, bytes_of(a)), untile_scales, on_cpu, cuda::untile_scales, a);
}

void tile_scales(Stream& stream, const MxScales& a) {
  check(kTile, a);
  const auto on_cpu = [&] {
    for_each_scale(
        a, [](uint8_t* tiles, int64_t bytes) { std::fill_n(tiles, bytes, uint8_t{0}); },
        [](uint8_t& tile, uint8_t plain) { tile = plain; });
  };
  run_op(stream, moving(kTile, bytes_of(a)), tile_scales, on_cpu, cuda::tile_scales, a);
}

}  // namespace ottava::fp8
