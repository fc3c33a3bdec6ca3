#pragma once

#include <cstdint>
#include <string>

#include "core/config/declare.h"

namespace ottava {

/// Section `activation_checkpoint`. What keys mean: activation_checkpoint_config.cpp.
struct ActivationCheckpointConfig {
  enum class Mode { none, selective, full, automatic };

  Mode mode = Mode::selective;
  std::string selective_ac_option = "2";  ///< "op", "all_but_attention", or every n-th block
  bool operator==(const ActivationCheckpointConfig&) const = default;

  bool per_op() const { return selective_ac_option == "op"; }
  bool all_but_attention() const { return selective_ac_option == "all_but_attention"; }
  /// The n of "every n-th block"; 0 with a word.
  int64_t every_nth_block() const;
};

void declare(config::Section& s, ActivationCheckpointConfig& c);
void validate(const ActivationCheckpointConfig& c, config::Problems& problems);

}  // namespace ottava
