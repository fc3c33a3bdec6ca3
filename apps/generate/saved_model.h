#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/data/tokenizer/tokenizer.h"
#include "models/llama/llama_config.h"
#include "parallel/sharding/fsdp.h"

namespace ottava {

/// A model on disk.
struct SavedModel {
  std::string folder;
  LlamaConfig config;
  int64_t positions = 0;  ///< tokens of a sequence that it is meant for: max_position_embeddings
  std::shared_ptr<const Tokenizer> tokenizer;
};
/// `path`: a step folder of a run, the newest of a folder of them, or a Hugging Face model folder. Reads no
/// weights. Throws FileError and ConfigError; in the name of `where` for a tokenizer of more ids than the
/// model has.
SavedModel open_saved_model(std::string_view where, const std::string& path);

/// The weights of `model` into the parameters of one rank, ready for a forward pass. Throws FileError.
void load_weights(const SavedModel& model, Fsdp& parameters, Stream& stream);

}  // namespace ottava
