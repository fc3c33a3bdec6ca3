#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/config/config.h"

namespace ottava {

/// Keys whose value differs from that in `earlier`, a printed configuration: "optimizer.lr 0.002 -> 0.001",
/// in the order of sections. Keys that only one of the two has do not count. `name` stands for the text in
/// errors. Throws ConfigError if the text is not a configuration.
std::vector<std::string> changed_keys(std::string_view earlier, const std::string& name, const Config& now);

}  // namespace ottava
