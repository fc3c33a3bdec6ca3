#pragma once

#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "parallel/checkpoint/contents.h"

namespace ottava {

/// What makes a checkpoint's folder a Hugging Face model, beside its weights.
struct ModelFiles {
  std::string config_json;           ///< beside FP32 weights
  std::string exported_config_json;  ///< beside the weights of an export
  /// The tokenizer or, for a model that came from a folder (model.flavor: hf), every file of that folder that
  /// is neither weights nor a checkpoint's own. The tokenizer's files add BOS if training did. For a run on
  /// conversations also chat_template.jinja, unless the folder's own template is the one that was trained,
  /// and generation_config.json, in which both the end of a turn and EOS stop.
  std::vector<checkpoint::TextFile> others;
  /// What config.json says differently from the folder's, one line each.
  std::vector<std::string> changes;
};
/// Reads all of them now, so that what a run saves does not depend on what becomes of their folder.
/// `exported` is the dtype of an export's weights. Throws FileError if the folder is gone.
ModelFiles model_files(const Experiment& experiment, DType exported);

/// A resumed run computes what it computed before. Throws ConfigError if the folder `path` has another model,
/// FileError if its config.json cannot be read or is not the one that was saved.
void require_same_model(const Experiment& experiment, const std::string& path);

/// Throws ConfigError if a run that saves these could not go on from them as the same model.
void require_loadable(const ModelFiles& files, const Experiment& experiment);

/// What the model in the folder `path` computes differently from this run's: "rope_theta 10000 and 500000".
/// Also empty if the folder has no config.json.
std::vector<std::string> model_differences(const Experiment& experiment, const std::string& path);

}  // namespace ottava
