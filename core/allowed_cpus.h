#pragma once

#include <vector>

namespace ottava {

/// The CPUs on which the calling thread may run, in ascending order, of a machine of any size; empty if the
/// system does not tell.
std::vector<int> allowed_cpus();

/// Lets the calling thread, and what it starts from now on, run on these CPUs only. False if the system
/// refuses.
bool allow_cpus(const std::vector<int>& cpus);

}  // namespace ottava
