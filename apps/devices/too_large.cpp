#include "apps/devices/too_large.h"

#include "apps/devices/available_memory.h"
#include "core/error.h"
#include "core/text/listed.h"
#include "core/text/size_text.h"
#include "parallel/comm/solo_communicator.h"

namespace ottava {
namespace {

int64_t bytes_of(const MemoryPlan& plan, MemoryCategory category) {
  int64_t bytes = 0;
  for (const PlannedAllocation& a : plan.persistent)
    if (a.category == category) bytes += a.bytes;
  return bytes;
}

}  // namespace

std::string too_large_text(std::string_view what, const MemoryPlan& plan, Device device, int64_t available) {
  constexpr int kNamed = 6;
  return fmt::format("{} needs {} on {}, but only {} are free for this rank; largest items: {}", what,
                     size_text(plan.total_bytes()), to_string(device), size_text(available),
                     listed(plan.largest(kNamed), [](const MemoryPlan::Item& item) {
                       return fmt::format("{} {}", item.text(), size_text(item.bytes));
                     }));
}

void require_memory_for_model(std::string_view what, const MemoryPlan& plan, Device device,
                              const std::function<std::string(int64_t available)>& advice) {
  SoloCommunicator alone;
  const int64_t available = memory_for_rank(device, alone);
  if (plan.total_bytes() <= available) return;
  fail<MemoryError>("memory", "{}. {}", too_large_text(what, plan, device, available),
                    weight_bytes(plan) < available ? advice(available) : advice_on_weights(plan, available));
}

std::string advice_on_weights(const MemoryPlan& plan, int64_t available) {
  const int64_t masters = bytes_of(plan, MemoryCategory::parameters);
  return masters < weight_bytes(plan) && masters < available
             ? "Choose --dtype float32, for which the weights need no copy in bfloat16, or a device with "
               "more "
               "memory"
             : "Choose a device with more memory";
}

int64_t weight_bytes(const MemoryPlan& plan) {
  return bytes_of(plan, MemoryCategory::parameters) + bytes_of(plan, MemoryCategory::compute);
}

}  // namespace ottava
