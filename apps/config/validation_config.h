#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/config/mixture_config.h"
#include "apps/config/training_config.h"

namespace ottava {

/// Section `validation`. It has a batch and a length of its own. What keys mean: validation_config.cpp.
struct ValidationConfig {
  bool enable = false;
  std::string dataset = "c4_validation";
  std::vector<std::string> dataset_path;
  std::vector<ValidationSetConfig> datasets;  ///< in place of dataset_path
  int64_t local_batch_size = 8;
  int64_t seq_len = 2048;
  int64_t freq = 10;
  int64_t steps = -1;  ///< -1: all of it
  DataloaderConfig dataloader;
  bool operator==(const ValidationConfig&) const = default;
};

void declare(config::Section& s, ValidationConfig& c);
void validate(const ValidationConfig& c, config::Problems& problems);

}  // namespace ottava
