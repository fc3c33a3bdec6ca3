#include "core/cuda/gpu.h"
#include "fp8/step_amax_kernels.h"

// Some hundred words per micro-batch: the launch costs more than the work.
namespace ottava::fp8::cuda {
namespace {

using namespace ottava::cuda;

constexpr int kBlock = 128;

__global__ void __launch_bounds__(kBlock) fold_kernel(uint32_t* current, uint32_t* largest, int64_t slots) {
  const int64_t s = thread_of_grid(kBlock);
  if (s >= slots) return;
  largest[s] = max(largest[s], current[s]);
  current[s] = 0;
}

__global__ void __launch_bounds__(kBlock)
    flag_kernel(const uint32_t* amaxes, uint32_t* flags, int64_t slots) {
  const int64_t s = thread_of_grid(kBlock);
  if (s < slots && amaxes[s] >= kInfinityBits) flags[s] = 1;
}

/// Threads that see a raised flag write the same value.
__global__ void __launch_bounds__(kBlock) poison_kernel(const uint32_t* flags, int64_t count, double* sum) {
  const int64_t i = thread_of_grid(kBlock);
  if (i < count && flags[i] != 0)
    atomicExch(reinterpret_cast<unsigned long long*>(sum), 0x7ff8000000000000ull);
}

}  // namespace

void fold_amax(Stream& stream, const FoldAmax& a) {
  launch("fold_amax", stream, one_thread_each(a.current.numel(), kBlock), fold_kernel,
         pointer<uint32_t>(a.current), pointer<uint32_t>(a.largest), a.current.numel());
}

void flag_non_finite(Stream& stream, const FlagNonFinite& a) {
  launch("flag_non_finite", stream, one_thread_each(a.amaxes.numel(), kBlock), flag_kernel,
         pointer<uint32_t>(a.amaxes), pointer<uint32_t>(a.flags), a.amaxes.numel());
}

void poison_if_raised(Stream& stream, const Tensor& flags, const Tensor& sum_of_squares) {
  launch("poison_if_raised", stream, one_thread_each(flags.numel(), kBlock), poison_kernel,
         pointer<uint32_t>(flags), flags.numel(), pointer<double>(sum_of_squares));
}

}  // namespace ottava::fp8::cuda
