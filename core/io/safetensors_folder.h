#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/io/safetensors.h"

namespace ottava {

/// Names `{stem}.safetensors` for one file, `{stem}-00001-of-00004.safetensors` for several: what HF writes.
std::string safetensors_file_name(std::string_view stem, int index, int count);
/// `{stem}.safetensors.index.json`.
std::string safetensors_index_name(std::string_view stem);
/// The text of an index: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}.
std::string make_safetensors_index(const std::vector<std::pair<std::string, std::string>>& tensor_files,
                                   int64_t total_bytes);
/// tensor -> file name. Throws FileError for anything malformed, also for file names that leave the folder.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text, std::string_view where);

/// The weights of an HF folder, found as transformers does: `{stem}.safetensors`, and only where there is
/// none the files of `{stem}.safetensors.index.json`.
class SafetensorsFolder {
 public:
  /// Opens all files and checks that the headers agree with the index, if it is read. Throws FileError, which
  /// says so if the folder holds only PyTorch files.
  explicit SafetensorsFolder(const std::string& folder, std::string_view stem = "model");

  struct Location {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  /// `entry` is null when there is no such tensor.
  Location find(const std::string& name) const;
  /// All tensors by name.
  const std::map<std::string, Location>& tensors() const { return tensors_; }
  const std::string& path() const { return folder_; }

 private:
  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location> tensors_;
};

}  // namespace ottava
