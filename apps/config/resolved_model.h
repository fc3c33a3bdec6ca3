#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/config/config.h"
#include "core/data/tokenizer/tokenizer.h"
#include "models/llama/model_of_section.h"

namespace ottava {

/// The model of section `model` for this run: that of its flavor, or of the config.json in hf_assets_path,
/// with the keys that are set replaced. `tokenizer` may be null; the vocabulary must then come from the
/// configuration or the flavor. `values`, if given, receives every property with its origin. Throws
/// ConfigError, and FileError also for a config.json with dropout.
LlamaConfig resolved_model(const Config& config, const Tokenizer* tokenizer,
                           std::vector<ModelValue>* values = nullptr);

/// The config.json that the model comes from; absent if it comes from a flavor. Throws FileError if the file
/// is missing.
std::optional<std::string> source_config_path(const Config& config);

/// The longest sequence that `model` is meant for, max_position_embeddings of its checkpoints:
/// model.max_seq_len, else what the config.json says that it comes from, else training.seq_len or, if that is
/// more, what scaled rotary frequencies are made for. Throws FileError.
int64_t longest_sequence(const Config& config, const LlamaConfig& model);

/// One line per property: name, value, and where it was set ("configs/debug.yaml:7", "command line") or what
/// it comes from ("flavor 8B").
std::vector<std::string> model_lines(const Config& config, const std::vector<ModelValue>& values);

}  // namespace ottava
