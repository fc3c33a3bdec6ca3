#pragma once

#include <cstdint>
#include <vector>

#include "apps/config/mixture_config.h"

namespace ottava {

/// Section `evaluation`: multiple-choice questions between steps. What keys mean: evaluation_config.cpp.
struct EvaluationConfig {
  bool enable = false;
  std::vector<ValidationSetConfig> tasks;
  int64_t freq = 1000;
  int64_t max_examples = -1;
  bool operator==(const EvaluationConfig&) const = default;
};

void declare(config::Section& s, EvaluationConfig& c);
void validate(const EvaluationConfig& c, config::Problems& problems);

}  // namespace ottava
