#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/io/safetensors_folder.h"

namespace ottava::checkpoint {

/// Reads every byte of a checkpoint and compares it with the manifest. Returns one sentence per file or
/// tensor that is not as it was saved; none for a checkpoint that is whole. `progress` (may be empty) is
/// called with the name of each tensor.
std::vector<std::string> verify_checkpoint(
    const std::string& step_folder, const std::function<void(const std::string& tensor)>& progress = {});

/// How a tensor of the same name and shape differs between two folders.
struct TensorDifference {
  std::string name;
  int64_t elements = 0, different = 0;  ///< different: values that are not equal (NaN equals nothing)
  double max_abs = 0;                   ///< largest |a - b|; NaN if any is
  double relative = 0;                  ///< ||a - b|| / ||a||; 0 when both are zero
};
struct FolderDifference {
  std::vector<std::string> only_in_a, only_in_b, other_shape;
  std::vector<TensorDifference> tensors;  ///< all that both have, by name
  bool same() const;
};
/// Compares the values of two folders of weights (or optimizer state: stem "optimizer"); stored types may
/// differ. Throws FileError for a file that cannot be read.
FolderDifference compare_folders(const SafetensorsFolder& a, const SafetensorsFolder& b);

}  // namespace ottava::checkpoint
