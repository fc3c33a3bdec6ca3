#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/train/training_engine.h"

namespace ottava {

/// Tokens of evaluation.prompts (texts_begin_with_bos()); none unless evaluation.enable. Throws ConfigError
/// for a prompt without tokens.
std::vector<std::vector<int32_t>> encode_prompts(const Experiment& experiment);

/// How the model that is being trained goes on with each of them, until the tokenizer's EOS. All ranks call
/// it; all get the same: draws depend on training.seed and the prompt's place only. What `before_each` pass
/// throws on all ranks, it throws.
std::vector<std::string> continue_prompts(const std::vector<std::vector<int32_t>>& prompts,
                                          const Experiment& experiment, TrainingEngine& engine,
                                          const std::function<void()>& before_each);

}  // namespace ottava
