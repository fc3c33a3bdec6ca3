#pragma once

#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "parallel/checkpoint/contents.h"

namespace ottava {

/// What makes a checkpoint's folder a Hugging Face model, beside its weights.
struct ModelFiles {
  std::string config_json;           ///< beside FP32 weights
  std::string exported_config_json;  ///< beside those of an export
  /// The tokenizer; of a model that came from a folder (model.flavor: hf) every file of it that is neither
  /// weights nor a checkpoint's own. Of a run on conversations also chat_template.jinja, unless the folder's
  /// own template is the one that was trained, and generation_config.json, in which the end of a turn and EOS
  /// both stop.
  std::vector<checkpoint::TextFile> others;
  /// What config.json says otherwise than the folder's, a line each.
  std::vector<std::string> changes;
};
/// Reads all of them now: what a run saves does not depend on what becomes of their folder. `exported` is the
/// dtype of an export's weights. Throws FileError for a folder that is gone.
ModelFiles model_files(const Experiment& experiment, DType exported);

/// What the model of the folder `path` computes otherwise than this run's: "rope_theta 10000 and 500000".
/// Empty also where it has no config.json.
std::vector<std::string> model_differences(const Experiment& experiment, const std::string& path);

}  // namespace ottava
