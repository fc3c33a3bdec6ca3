#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/declare.h"
#include "core/dtype.h"

namespace ottava {

/// Section `checkpoint`. What keys mean: checkpoint_config.cpp.
struct CheckpointConfig {
  enum class Async { disabled, async, async_with_pinned_mem };

  bool enable = false;
  std::string folder = "checkpoint";
  int64_t interval = 500;
  int64_t keep_latest_k = 10;  ///< 0: all
  int64_t keep_every = 0;      ///< steps; 0: none
  int64_t load_step = -1;      ///< to go back to; -1: the newest
  int64_t advance_data_steps = 0;
  bool load_only = false;
  std::vector<std::string> exclude_from_loading;
  std::optional<std::string> initial_load_path;
  bool initial_load_model_only = true;
  bool last_save_model_only = false;
  DType export_dtype = DType::f32;
  Async async_mode = Async::disabled;
  bool enable_first_step_checkpoint = false;
  bool operator==(const CheckpointConfig&) const = default;
};

void declare(config::Section& s, CheckpointConfig& c);
void validate(const CheckpointConfig& c, config::Problems& problems);

}  // namespace ottava
