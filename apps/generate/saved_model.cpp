#include "apps/generate/saved_model.h"

#include "apps/train/checkpoints.h"
#include "core/error.h"
#include "models/llama/read_hf_config.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/huggingface.h"

namespace ottava {

SavedModel open_saved_model(std::string_view where, const std::string& path) {
  const std::string folder = checkpoint::newest_step_or_itself(path);
  SavedModel out{folder, read_hf_config(folder), read_hf_positions(folder), Tokenizer::load(folder)};
  if (out.tokenizer->vocab_size() > out.config.vocab_size) {
    fail<ConfigError>(where, "the tokenizer in {} has {} ids, but the model has {}", folder,
                      out.tokenizer->vocab_size(), out.config.vocab_size);
  }
  return out;
}

void load_weights(const SavedModel& model, Fsdp& parameters, Stream& stream) {
  checkpoint::RankGroup alone;
  checkpoint::load_huggingface(model.folder, trained_parameters(parameters, stream), alone);
  parameters.refresh_compute_copies();
}

}  // namespace ottava
