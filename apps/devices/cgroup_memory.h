#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ottava {

/// Bytes that the control groups of this process (a container, a batch job) leave it below their memory
/// limits; the tightest on the way to the root counts. Page cache that could be dropped counts as free.
/// Nothing if none has a limit. `root` is prepended to /proc and /sys, for tests.
std::optional<int64_t> cgroup_memory_left(const std::string& root = "");

}  // namespace ottava
