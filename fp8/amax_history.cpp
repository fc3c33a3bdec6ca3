#include "fp8/amax_history.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/check.h"
#include "core/run_op.h"
#include "fp8/amax_history_kernels.h"

namespace ottava::fp8 {
namespace {

constexpr std::string_view kDelayed = "delayed_amax", kAdvance = "advance_amax_history";

int64_t slots_of(std::string_view op, const AmaxHistory& history) {
  if (history.rows.dtype != DType::u32 || history.rows.shape.rank() != 2 || history.length() < 1) {
    fail<ShapeError>(op, "history is {}, expected u32 [length, slots]", describe(history.rows));
  }
  return history.rows.cols();
}

}  // namespace

uint32_t with_margin(uint32_t amax_bits, int64_t margin) {
  const float scaled = std::ldexp(std::bit_cast<float>(amax_bits), static_cast<int>(margin));
  return std::min(std::bit_cast<uint32_t>(scaled), 0x7f7fffffu);
}

void delayed_amax(Stream& stream, const AmaxHistory& history, const DelayedAmax& a) {
  const int64_t slots = slots_of(kDelayed, history);
  check_tensor(kDelayed, "amax", a.amax, DType::u32, {slots});
  if (!history.is_full() || !a.current.empty())
    check_tensor(kDelayed, "current", a.current, DType::u32, {slots});
  const auto on_cpu = [&] {
    uint32_t* out = a.amax.as<uint32_t>();
    if (!history.is_full()) {
      std::copy_n(a.current.as<uint32_t>(), slots, out);
      return;
    }
    std::fill_n(out, slots, 0u);
    for (int64_t r = 0; r < history.length(); ++r) {
      const uint32_t* row = history.rows.as<uint32_t>() + r * slots;
      for (int64_t s = 0; s < slots; ++s) out[s] = std::max(out[s], row[s]);
    }
    for (int64_t s = 0; s < slots; ++s)
      out[s] = with_margin(out[s] > 0 ? out[s] : kUnseenAmax, history.margin);
  };
  run_op(stream, moving(kDelayed, history.rows.bytes() + a.amax.bytes()), delayed_amax, on_cpu,
         cuda::delayed_amax, history, a);
}

void advance(Stream& stream, AmaxHistory& history, const Tensor& step_amax) {
  const int64_t slots = slots_of(kAdvance, history), length = history.length();
  check_tensor(kAdvance, "step_amax", step_amax, DType::u32, {slots});
  const auto on_cpu = [&] {
    const uint32_t* from = step_amax.as<uint32_t>();
    uint32_t* oldest = history.rows.as<uint32_t>() + history.steps % length * slots;
    const uint32_t* newest = history.rows.as<uint32_t>() + (history.steps + length - 1) % length * slots;
    for (int64_t s = 0; s < slots; ++s) {
      const uint32_t before = history.steps > 0 ? newest[s] : 0;
      oldest[s] = from[s] > 0 && from[s] < 0x7f800000u ? from[s] : before;
    }
  };
  // Only the cost is recorded: a call made again would advance again.
  const auto on_meta = [&] { stream.recorder().record(moving(kAdvance, 2 * step_amax.bytes())); };
  run_where(stream, on_cpu, cuda::advance, on_meta, history, step_amax);
  ++history.steps;
}

}  // namespace ottava::fp8
