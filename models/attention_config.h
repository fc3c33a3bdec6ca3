#pragma once

#include <cstdint>

#include "core/config/declare.h"

namespace ottava {

/// Section `attention`. What keys mean: attention_config.cpp.
struct AttentionConfig {
  enum class Backend : uint8_t { automatic, flash, cudnn };
  Backend backend = Backend::automatic;
  bool deterministic = true;  ///< of cuDNN's backward
  /// On a GPU; ottava's own kernels otherwise.
  bool may_use_cudnn() const { return backend != Backend::flash; }
  bool operator==(const AttentionConfig&) const = default;
};

void declare(config::Section& s, AttentionConfig& c);

}  // namespace ottava
