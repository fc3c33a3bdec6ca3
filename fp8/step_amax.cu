#include "core/cuda/gpu.h"
#include "fp8/step_amax_kernels.h"

// Some hundred words per micro-batch: the launch costs more than the work.
namespace ottava::fp8::cuda {
namespace {

using namespace ottava::cuda;

constexpr int kBlock = 128;

__global__ void __launch_bounds__(kBlock) fold_kernel(uint32_t* current, uint32_t* largest, int64_t slots) {
  const int64_t s = blockIdx.x * int64_t{kBlock} + threadIdx.x;
  if (s >= slots) return;
  largest[s] = max(largest[s], current[s]);
  current[s] = 0;
}

__global__ void __launch_bounds__(kBlock)
    flag_kernel(const uint32_t* amaxes, uint32_t* flags, int64_t slots) {
  const int64_t s = blockIdx.x * int64_t{kBlock} + threadIdx.x;
  if (s < slots && amaxes[s] >= kInfinityBits) flags[s] = 1;
}

/// Threads that see a raised flag write the same value.
__global__ void __launch_bounds__(kBlock) poison_kernel(const uint32_t* flags, int64_t count, double* sum) {
  const int64_t i = blockIdx.x * int64_t{kBlock} + threadIdx.x;
  if (i < count && flags[i] != 0)
    atomicExch(reinterpret_cast<unsigned long long*>(sum), 0x7ff8000000000000ull);
}

}  // namespace

void fold_amax(Stream& stream, const Tensor& current, const Tensor& largest) {
  launch("fold_amax", stream, {.grid = grid_of(ceil_div(current.numel(), kBlock)), .block = kBlock},
         fold_kernel, static_cast<uint32_t*>(current.data), static_cast<uint32_t*>(largest.data),
         current.numel());
}

void flag_non_finite(Stream& stream, const Tensor& amaxes, const Tensor& flags) {
  launch("flag_non_finite", stream, {.grid = grid_of(ceil_div(amaxes.numel(), kBlock)), .block = kBlock},
         flag_kernel, static_cast<const uint32_t*>(amaxes.data), static_cast<uint32_t*>(flags.data),
         amaxes.numel());
}

void poison_if_raised(Stream& stream, const Tensor& flags, const Tensor& sum_of_squares) {
  launch("poison_if_raised", stream, {.grid = grid_of(ceil_div(flags.numel(), kBlock)), .block = kBlock},
         poison_kernel, static_cast<const uint32_t*>(flags.data), flags.numel(),
         static_cast<double*>(sum_of_squares.data));
}

}  // namespace ottava::fp8::cuda
