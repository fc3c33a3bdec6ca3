#include "apps/devices/cgroup_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/contains.h"

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

// Goes from the group to the root of its hierarchy. In a container the path may be the host's; then what is
// mounted counts.
std::optional<int64_t> least_left(const fs::path& mount, const std::string& path, const Names& names) {
  std::optional<int64_t> least;
  for (fs::path group = fs::path(path).relative_path();; group = group.parent_path()) {
    const std::optional<int64_t> left = left_in(mount / group, names);
    if (left) least = std::min(*left, least.value_or(*left));
    if (group.empty()) return least;
  }
}

}  // namespace

std::optional<int64_t> cgroup_memory_left(const std::string& root) {
  std::optional<int64_t> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/job/step", "0::/user.slice"
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    const bool is_version_2 = number == "0" && controllers.empty();
    if (!is_version_2 && !contains_text("," + controllers + ",", ",memory,")) continue;
    const fs::path mount = root + (is_version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    const std::optional<int64_t> left = least_left(mount, path, is_version_2 ? kVersion2 : kVersion1);
    if (left) least = std::min(*left, least.value_or(*left));
  }
  return least;
}

}  // namespace ottava
