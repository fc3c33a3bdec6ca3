#include <cfloat>

#include "core/cuda/elements.cuh"
#include "core/cuda/tensor_list.cuh"
#include "core/optim/grad_norm_kernels.h"
#include "core/optim/spike.h"
#include "core/optim/step_scalars.h"
#include "core/optim/tensor_chunks.h"

// Ceiling: memory bandwidth, 4 bytes per element (on GPUs with full-rate f64; others are bound by the f64
// additions). The squares of f32 are exact in f64. One block per chunk, then one block for all chunks.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 256, kSize = 4;

struct Entry {
  const float* data;
  int64_t elements, first_chunk;
  bool aligned;
};

/// The sum over the block, in thread 0.
__device__ __forceinline__ double block_sum(double x) {
  OTTAVA_SHARED(double, sums, [kBlock]);
  sums[threadIdx.x] = x;
  for (unsigned width = kBlock / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  return sums[0];
}

__device__ __forceinline__ double square(float x) { return static_cast<double>(x) * x; }

__global__ void __launch_bounds__(kBlock) chunk_kernel(TensorList<Entry> list, double* chunks) {
  const int which = list.find(blockIdx.x);
  const Entry& e = list.entries[which];
  const int64_t chunk = blockIdx.x - list.first_block[which];
  const float* x = e.data + chunk * TensorChunks::kSize;
  const int64_t n = min(TensorChunks::kSize, e.elements - chunk * TensorChunks::kSize);
  double sum = 0;
  if (e.aligned) {
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n / kSize; i += kBlock) {
      const auto pack = load_pack<float, kSize>(x, i);
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum += square(pack[k]);
    }
  }
  const int64_t done = e.aligned ? n / kSize * kSize : 0;
#pragma unroll 4
  for (int64_t i = done + threadIdx.x; i < n; i += kBlock) sum += square(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) chunks[e.first_chunk + chunk] = sum;
}

__global__ void __launch_bounds__(kBlock) total_kernel(const double* chunks, int64_t count, double* out) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kBlock) sum += chunks[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = sum;
}

__global__ void clip_kernel(const double* sum_of_squares, float max_norm, float* scalars, int32_t* skipped) {
  const double loss_scale = scalars[kLossScale], norm = sqrt(*sum_of_squares) / loss_scale;
  const double wanted = static_cast<double>(max_norm) / (norm + 1e-6);
  const double clip = max_norm > 0 && !(wanted >= 1.0) ? wanted : 1.0;
  const float factor = static_cast<float>(clip / loss_scale), stored = static_cast<float>(norm);
  // As on the CPU.
  const bool usable = isfinite(stored) && isfinite(factor) && factor >= FLT_MIN;
  scalars[kGradientNorm] = stored;
  scalars[kGradientFactor] = usable ? factor : 0.0f;
  *skipped = usable ? kNotSkipped : kNotFinite;
}

}  // namespace

void grad_norm_squared(Stream& stream, const std::vector<Tensor>& gradients, const Tensor& out,
                       const Tensor& workspace) {
  std::vector<Entry> entries;
  int64_t chunks = 0;
  for (const Tensor& g : gradients) {
    entries.push_back({pointer<float>(g), g.numel(), chunks, rows_are_aligned(0, g)});
    chunks += ceil_div(g.numel(), TensorChunks::kSize);
  }
  auto* sums = pointer<double>(workspace);
  for_each_list(entries, TensorChunks::kSize, [&](const TensorList<Entry>& list, unsigned blocks) {
    launch("grad_norm_squared", stream, {.grid = blocks, .block = kBlock}, chunk_kernel, list, sums);
  });
  launch("grad_norm_squared", stream, {.grid = 1, .block = kBlock}, total_kernel, sums, chunks,
         pointer<double>(out));
}

void clip_factor(Stream& stream, const Tensor& sum_of_squares, float max_norm, const Tensor& scalars,
                 const Tensor& skipped) {
  launch("clip_factor", stream, {.grid = 1, .block = 1}, clip_kernel, pointer<double>(sum_of_squares),
         max_norm, pointer<float>(scalars), pointer<int32_t>(skipped));
}

}  // namespace ottava::cuda
