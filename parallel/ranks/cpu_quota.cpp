#include "parallel/ranks/cpu_quota.h"

#include <algorithm>
#include <fstream>

#include "core/threads/control_groups.h"

namespace ottava {
namespace {

// Microseconds of time in each period of so many; "max" and -1 are no limit.
std::optional<double> quota_of(const ControlGroup& group) {
  double quota = -1, period = 0;
  if (group.is_version_2) {
    std::ifstream(group.folder / "cpu.max") >> quota >> period;
  } else {
    std::ifstream(group.folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    const std::optional<double> quota = quota_of(group);
    if (quota) least = std::min(*quota, least.value_or(*quota));
  }
  return least;
}

}  // namespace ottava
