#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

struct ControlGroup {
  std::filesystem::path folder;
  bool is_version_2 = false;
};

/// The control groups of this process (a container, a batch job) and those around them in which `controller`
/// ("memory", "cpu") may have a limit, each before the one around it. Knows versions 2 and 1 (Linux's
/// Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/). Folders need not exist: in a container the path may
/// be the host's, and only the root is there. `root` is prepended to /proc and /sys, for tests.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root);

}  // namespace ottava
