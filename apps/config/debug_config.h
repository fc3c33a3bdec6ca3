#pragma once

#include "core/config/declare.h"

namespace ottava {

/// Section `debug`. Its `seed` is training.seed.
struct DebugConfig {
  bool deterministic = false;
  bool operator==(const DebugConfig&) const = default;
};

void declare(config::Section& s, DebugConfig& c);

}  // namespace ottava
