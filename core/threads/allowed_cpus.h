#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// The CPUs on which a process may run, or the calling thread (0), in ascending order, of a machine of any
/// size; empty if the system does not tell.
std::vector<int> allowed_cpus(pid_t process = 0);

/// Lets the calling thread, and what it starts from now on, run on these CPUs only. False if the system
/// refuses.
bool allow_cpus(const std::vector<int>& cpus);
/// The same for every thread that this process has.
bool allow_cpus_everywhere(const std::vector<int>& cpus);

/// "0-3,8", as the kernel lists CPUs; they are in ascending order.
std::string cpu_list(const std::vector<int>& cpus);
/// The CPUs of such a list. Throws ConfigError for another text.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace ottava
