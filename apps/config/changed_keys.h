#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/config/config.h"

namespace ottava {

/// Keys whose value is not what it was in `earlier`, a printed configuration: "optimizer.lr 0.002 -> 0.001",
/// in the order of sections. Keys that only one of the two has are no change. `name` stands for the text in
/// errors. Throws ConfigError for a text that is no configuration.
std::vector<std::string> changed_keys(std::string_view earlier, const std::string& name, const Config& now);

}  // namespace ottava
