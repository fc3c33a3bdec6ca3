#include "apps/devices/cgroup_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/threads/control_groups.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;

// Version 1 writes the largest multiple of a page instead of "max".
constexpr int64_t kNoLimit = int64_t{1} << 60;

struct Names {
  const char *limit, *used, *droppable;
};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file"};

std::optional<int64_t> number_in(const fs::path& file) {
  int64_t number = 0;
  if (std::ifstream(file) >> number) return number;
  return std::nullopt;  // not there, or "max"
}

int64_t droppable_in(const fs::path& group, const char* name) {
  std::ifstream file(group / "memory.stat");
  int64_t bytes = 0;
  for (std::string key; file >> key >> bytes;) {
    if (key == name) return bytes;
  }
  return 0;
}

std::optional<int64_t> left_in(const fs::path& group, const Names& names) {
  const std::optional<int64_t> limit = number_in(group / names.limit), used = number_in(group / names.used);
  if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
  return std::max<int64_t>(0, *limit - *used + droppable_in(group, names.droppable));
}

}  // namespace

std::optional<int64_t> cgroup_memory_left(const std::string& root) {
  std::optional<int64_t> least;
  for (const ControlGroup& group : control_groups("memory", root)) {
    const std::optional<int64_t> left = left_in(group.folder, group.is_version_2 ? kVersion2 : kVersion1);
    if (left) least = std::min(*left, least.value_or(*left));
  }
  return least;
}

}  // namespace ottava
