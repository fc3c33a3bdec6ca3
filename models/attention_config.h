#pragma once

#include <string>

#include "core/config/declare.h"

namespace ottava {

/// Section `attention`. What keys mean: attention_config.cpp.
struct AttentionConfig {
  std::string backend = "auto";  ///< "auto", "flash", "cudnn"
  bool deterministic = true;     ///< of cuDNN's backward
  bool operator==(const AttentionConfig&) const = default;
};

void declare(config::Section& s, AttentionConfig& c);

}  // namespace ottava
