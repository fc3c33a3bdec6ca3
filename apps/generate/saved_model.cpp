#include "apps/generate/saved_model.h"

#include <optional>

#include "apps/checkpoints/checkpoints.h"
#include "core/error.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/huggingface.h"
#include "parallel/checkpoint/manifest.h"

namespace ottava {
namespace {

// In a folder that a run has saved. Loading the weights checks them.
void check_texts(const std::string& folder) {
  const std::optional<checkpoint::Manifest> manifest = checkpoint::find_manifest(folder);
  if (!manifest) return;
  for (const checkpoint::Manifest::File& file : manifest->files) {
    if (file.name == "config.json" || file.name == "tokenizer.json")
      checkpoint::check_model_file(folder, file);
  }
}

}  // namespace

SavedModel open_saved_model(std::string_view where, const std::string& path) {
  const std::string folder = checkpoint::newest_step_or_itself(path);
  check_texts(folder);
  SavedModel out{folder, read_hf_config(folder), read_hf_positions(folder), Tokenizer::load(folder)};
  if (out.tokenizer->vocab_size() > out.config.vocab_size) {
    fail<ConfigError>(where, "the tokenizer in {} has {} ids, but the model has {}", folder,
                      out.tokenizer->vocab_size(), out.config.vocab_size);
  }
  return out;
}

void load_weights(const SavedModel& model, Fsdp& parameters, Stream& stream) {
  checkpoint::PatientRanks alone;
  checkpoint::load_huggingface(model.folder, trained_parameters(parameters, stream), alone);
  parameters.refresh_compute_copies();
}

}  // namespace ottava
