#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/step/training_engine.h"

namespace ottava {

/// The tokens of each of evaluation.prompts (with BOS where texts_begin_with_bos()); none unless
/// evaluation.enable. Throws ConfigError for a prompt without tokens, and for one that with
/// evaluation.max_new_tokens is longer than the model's window.
std::vector<std::vector<int32_t>> encode_prompts(const Experiment& experiment);

/// A warning if the longest of them and its continuation are longer than the model is meant for
/// (longest_sequence()), else empty.
std::string length_warning(const std::vector<std::vector<int32_t>>& prompts, const Experiment& experiment);

/// How the model in training continues each of them, until the tokenizer's EOS. All ranks call it and get the
/// same: draws depend only on training.seed and the prompt's place. `before_each` is called before each pass;
/// what it throws, on all ranks, is thrown.
std::vector<std::string> continue_prompts(const std::vector<std::vector<int32_t>>& prompts,
                                          const Experiment& experiment, TrainingEngine& engine,
                                          const std::function<void()>& before_each);

}  // namespace ottava
