#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/config/mixture_config.h"

namespace ottava {

/// Section `evaluation`: questions and prompts between steps. What keys mean: evaluation_config.cpp.
struct EvaluationConfig {
  bool enable = false;
  std::vector<NamedFilesConfig> tasks;
  int64_t freq = 1000;
  int64_t max_examples = -1;
  std::vector<std::string> prompts;
  int64_t max_new_tokens = 64;
  double temperature = 0;
  bool operator==(const EvaluationConfig&) const = default;

  /// An upper limit for the tokens of the longest prompt and what is added to it: a token has at least one
  /// byte.
  int64_t longest_sample() const;
  bool scores() const { return enable && !tasks.empty(); }
};

void declare(config::Section& s, EvaluationConfig& c);
void validate(const EvaluationConfig& c, config::Problems& problems);

}  // namespace ottava
