#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/data/tokenizer/tokenizer.h"
#include "models/llama/read_hf_config.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

/// A model on disk.
struct SavedModel {
  std::string folder;
  LlamaConfig config;
  HfPositions positions;
  std::shared_ptr<const Tokenizer> tokenizer;
};
/// `path`: a step folder of a run, a folder of such (the newest counts), or a Hugging Face model folder.
/// Reads no weights. Texts that have changed since a run saved them are refused. Throws FileError and
/// ConfigError; the latter in the name of `where` for a tokenizer with more ids than the model.
SavedModel open_saved_model(std::string_view where, const std::string& path);

/// Loads the weights of `model` into the parameters of one rank, ready for a forward pass. Throws FileError.
void load_weights(const SavedModel& model, Fsdp& parameters, Stream& stream);

}  // namespace ottava
