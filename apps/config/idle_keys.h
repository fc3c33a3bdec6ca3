#pragma once

#include <string>
#include <vector>

#include "apps/config/config.h"

namespace ottava {

/// Keys that are not at their defaults but change nothing, because another key switches off what they are
/// about. Returns one sentence for each such other key, with all the keys that it makes idle. A file may have
/// such keys, so that a single key can switch their subject on.
std::vector<std::string> idle_keys(const Config& config);

}  // namespace ottava
