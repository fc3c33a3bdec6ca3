#include "core/cuda/row_groups.h"

#include "core/cuda/gpu.h"

namespace ottava::cuda {
namespace {

constexpr int kColumns = 32, kSlices = 8, kBlock = kColumns * kSlices;

// Ceiling: the L2 cache, where the blocks that made the partial sums have just left them. Each of 8 warps
// adds every eighth group, then the 8 sums are added in order. There is little to do but wait, so that all
// that is read is on its way before the first of it is added; a thread adds what it has copied itself.
__global__ void __launch_bounds__(kBlock) sum_kernel(RowGroupSums s, float* out) {
  OTTAVA_SHARED(float, slices, [kSlices][kColumns]);
  const int lane = threadIdx.x % kColumns, slice = threadIdx.x / kColumns;
  const int64_t c = blockIdx.x * int64_t{kColumns} + lane;
  float* mine = dynamic_shared<float>() + threadIdx.x;
  float sum = 0, before = 0;
  if (c < s.cols) {
    const float* from = s.partials + slice * s.stride + s.first + c;
    float* to = mine;
#pragma unroll 11
    for (int64_t g = slice; g < s.groups; g += kSlices, to += kBlock, from += kSlices * s.stride) {
      cp_async_4(to, from, true);
    }
    cp_async_commit();
    if (slice == 0) before = out[c];
    cp_async_wait<0>();
#pragma unroll 11
    for (int64_t g = slice; g < s.groups; g += kSlices, mine += kBlock) sum += *mine;
  }
  slices[slice][lane] = sum;
  __syncthreads();
  if (slice != 0 || c >= s.cols) return;
  for (int i = 1; i < kSlices; ++i) sum += slices[i][lane];
  out[c] = before + sum;
}

}  // namespace

void add_row_groups(std::string_view op, Stream& stream, const RowGroupSums& sums, float* out) {
  const int64_t copied = ceil_div(sums.groups, int64_t{kSlices}) * kBlock;
  launch(op, stream,
         {.grid = grid_of(ceil_div(sums.cols, kColumns)),
          .block = kBlock,
          .shared_bytes = static_cast<size_t>(copied) * sizeof(float)},
         sum_kernel, sums, out);
}

}  // namespace ottava::cuda
