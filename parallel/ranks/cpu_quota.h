#pragma once

#include <optional>
#include <string>

namespace ottava {

/// How many CPUs' time the control groups of this process allow it (docker run --cpus, a limit of
/// Kubernetes): the least on the way to the root, nothing if none has a quota. `root` is prepended to /proc
/// and /sys, for tests.
std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace ottava
