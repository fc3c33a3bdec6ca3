#include "core/cuda/gpu.h"
#include "fp8/amax_history_kernels.h"

// A few thousand words once per step: the launch costs more than the work.
namespace ottava::fp8::cuda {
namespace {

using namespace ottava::cuda;

constexpr int kBlock = 128;

__global__ void __launch_bounds__(kBlock)
    delayed_kernel(const uint32_t* rows, int64_t length, int64_t slots, int margin, const uint32_t* current,
                   uint32_t* amax) {
  const int64_t s = thread_of_grid(kBlock);
  if (s >= slots) return;
  if (current) {
    amax[s] = current[s];
    return;
  }
  uint32_t largest = 0;
  for (int64_t r = 0; r < length; ++r) largest = max(largest, rows[r * slots + s]);
  if (largest == 0) largest = kUnseenAmax;
  amax[s] = min(__float_as_uint(ldexpf(__uint_as_float(largest), margin)), 0x7f7fffffu);
}

__global__ void __launch_bounds__(kBlock)
    advance_kernel(const uint32_t* step_amax, const uint32_t* newest, uint32_t* oldest, int64_t slots) {
  const int64_t s = thread_of_grid(kBlock);
  if (s >= slots) return;
  const uint32_t before = newest ? newest[s] : 0;  // newest may be oldest
  const uint32_t now = step_amax[s];
  oldest[s] = now > 0 && now < 0x7f800000u ? now : before;
}

}  // namespace

void delayed_amax(Stream& stream, const AmaxHistory& history, const DelayedAmax& a) {
  const int64_t slots = history.rows.cols();
  launch("delayed_amax", stream, one_thread_each(slots, kBlock), delayed_kernel,
         pointer<uint32_t>(history.rows), history.length(), slots, static_cast<int>(history.margin),
         history.is_full() ? nullptr : pointer<uint32_t>(a.current), pointer<uint32_t>(a.amax));
}

void advance(Stream& stream, const AmaxHistory& history, const Tensor& step_amax) {
  const int64_t slots = history.rows.cols(), length = history.length();
  auto row = [&](int64_t step) { return pointer<uint32_t>(history.rows) + step % length * slots; };
  launch("advance_amax_history", stream, one_thread_each(slots, kBlock), advance_kernel,
         pointer<uint32_t>(step_amax), history.steps > 0 ? row(history.steps + length - 1) : nullptr,
         row(history.steps), slots);
}

}  // namespace ottava::fp8::cuda
