#include "core/cuda/row_groups.h"

#include "core/cuda/gpu.h"

namespace ottava::cuda {
namespace {

constexpr int kColumns = 32, kSlices = 8;  // of one block

// Each of 8 warps adds every eighth group, then the 8 sums are added in order.
__global__ void __launch_bounds__(kColumns* kSlices) sum_kernel(RowGroupSums s, float* out) {
  OTTAVA_SHARED(float, slices, [kSlices][kColumns]);
  const int lane = threadIdx.x % kColumns, slice = threadIdx.x / kColumns;
  const int64_t c = blockIdx.x * int64_t{kColumns} + lane;
  float sum = 0;
  if (c < s.cols) {
#pragma unroll 11
    for (int64_t g = slice; g < s.groups; g += kSlices) sum += s.partials[g * s.stride + s.first + c];
  }
  slices[slice][lane] = sum;
  __syncthreads();
  if (slice != 0 || c >= s.cols) return;
  for (int i = 1; i < kSlices; ++i) sum += slices[i][lane];
  out[c] += sum;
}

}  // namespace

void add_row_groups(std::string_view op, Stream& stream, const RowGroupSums& sums, float* out) {
  launch(op, stream, {.grid = grid_of(ceil_div(sums.cols, kColumns)), .block = kColumns * kSlices},
         sum_kernel, sums, out);
}

}  // namespace ottava::cuda
