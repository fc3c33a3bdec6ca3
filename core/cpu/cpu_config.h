#pragma once

#include <string>

#include "core/config/declare.h"

namespace ottava {

/// Section `cpu`. What keys mean: cpu_config.cpp.
struct CpuConfig {
  std::string bf16_matmul = "auto", bf16_attention = "auto";  ///< "auto", "direct", "widened"
  bool operator==(const CpuConfig&) const = default;
};

void declare(config::Section& s, CpuConfig& c);

}  // namespace ottava
