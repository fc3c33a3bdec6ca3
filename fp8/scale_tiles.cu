#include "core/cuda/gpu.h"
#include "fp8/scale_tiles_kernels.h"

// A byte in and a byte out per 32 elements of the weight: a thirtieth of the codes' traffic, whatever the
// order of reading.
namespace ottava::fp8::cuda {
namespace {

using namespace ottava::cuda;

constexpr int kBlock = 256;

__global__ void __launch_bounds__(kBlock)
    untile_kernel(const uint8_t* tiles, uint8_t* list, PlainScales plain, ScaleLayout tiled) {
  const int64_t i = thread_of_grid(kBlock);
  if (i >= plain.rows * plain.blocks) return;
  const int64_t row = plain.rows_outside ? i / plain.blocks : i % plain.rows;
  const int64_t block = plain.rows_outside ? i % plain.blocks : i / plain.rows;
  list[i] = tiles[tiled(row, block * 32)];
}

/// One thread per byte of the tiles, so that the padding is written too.
__global__ void __launch_bounds__(kBlock)
    tile_kernel(const uint8_t* list, uint8_t* tiles, PlainScales plain, int64_t count) {
  const int64_t i = thread_of_grid(kBlock);
  if (i >= count) return;
  const int64_t across = ceil_div(plain.blocks, 4), tile = i / 512, byte = i % 512;
  const int64_t row = tile / across * 128 + byte % 16 / 4 * 32 + byte / 16,
                block = tile % across * 4 + byte % 4;
  tiles[i] = row < plain.rows && block < plain.blocks ? list[plain(row, block)] : 0;
}

}  // namespace

void untile_scales(Stream& stream, const MxScales& a) {
  launch("untile_scales", stream, one_thread_each(a.plain.numel(), kBlock), untile_kernel,
         pointer<uint8_t>(a.tiles), pointer<uint8_t>(a.plain), plain_scales(a),
         ScaleLayout(Granularity::block_1x32, a.matrix.rows(), a.matrix.cols()));
}

void tile_scales(Stream& stream, const MxScales& a) {
  launch("tile_scales", stream, one_thread_each(a.tiles.numel(), kBlock), tile_kernel,
         pointer<uint8_t>(a.plain), pointer<uint8_t>(a.tiles), plain_scales(a), a.tiles.numel());
}

}  // namespace ottava::fp8::cuda
