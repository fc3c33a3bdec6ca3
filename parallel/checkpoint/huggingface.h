#pragma once

#include <string>
#include <vector>

#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/patient_ranks.h"

namespace ottava::checkpoint {

struct HuggingFaceLoad {
  /// Tensors in the folder that are not needed: rotary frequencies of older files; lm_head of a tied model if
  /// it equals the embedding.
  std::vector<std::string> ignored;
  std::vector<std::string> stored_types;  ///< "BF16", ...
};

/// Collective. Fills the weights of all ranks from an HF folder (single file or sharded with an index; f32,
/// bf16, f16); optimizer state is not touched. Reads only what each rank holds. In a folder that a run has
/// saved, the manifest's checksums of the weights and of config.json are compared. Throws the same on all
/// ranks: ConfigError with the tensors that are missing, unexpected or of another shape; ConfigError if ranks
/// see different weights (judged by a sample of each tensor); FileError for damaged files and for weights
/// that are not finite, with name and index of the first.
HuggingFaceLoad load_huggingface(const std::string& folder, const TrainedParameters& into,
                                 PatientRanks& group);

}  // namespace ottava::checkpoint
