#pragma once

#include <string>
#include <vector>

#include "apps/config/config.h"

namespace ottava {

/// Keys that are not at their defaults and change nothing, since another key switches off what they are
/// about: one sentence for each such key, with all that it makes idle. A file is free to have them, so that
/// what it switches off can be switched on by one key.
std::vector<std::string> idle_keys(const Config& config);

}  // namespace ottava
