#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/safetensors.h"
#include "parallel/checkpoint/layout.h"

namespace ottava::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";
inline std::string manifest_path(const std::string& folder) {
  return folder + "/" + std::string(kManifestName);
}
inline constexpr int64_t kFormatVersion = 1;

/// `manifest.json`, the last file to be written: what a complete checkpoint consists of.
struct Manifest {
  int64_t step = 0;
  int64_t world_size = 1;
  std::string layout;  ///< of the ranks that saved it, for people: Mesh::describe(); may be empty

  struct File {
    std::string name;
    int64_t bytes = 0;
    /// XXH64 of the whole file, or of the header of a safetensors file (`header_bytes` > 0).
    uint64_t checksum = 0;
    int64_t header_bytes = 0;
  };
  std::vector<File> files;

  struct Tensor {
    std::string name, file;
    std::string type;  ///< "F32"
    std::vector<int64_t> shape;
    uint64_t checksum = 0;  ///< element_checksum over the whole tensor
  };
  std::vector<Tensor> tensors;
  /// False: it holds only weights.
  bool has_optimizer() const;
};

/// The text ends with the XXH64 of everything before it, so that a single changed byte is seen.
std::string to_text(const Manifest& manifest);

/// Whether this is a plain file name, which cannot lead out of its folder.
bool is_file_name(std::string_view name);
/// Inverse of to_text(). Throws FileError for a text that is truncated or changed, ConfigError
/// for one of another version of the format, which may be whole.
Manifest parse_manifest(std::string_view text, std::string_view where);

/// Checks size and checksum of one file (for weights, of its header). Throws FileError, which ends with the
/// advice.
void check_file(const std::string& folder, const Manifest::File& expected, std::string_view advice = "");
/// The same where only the model is loaded, which takes no manifest.
void check_model_file(const std::string& folder, const Manifest::File& expected);

/// Compares the checksum of a tensor that was read. Throws FileError.
void check_checksum(const std::string& folder, const Manifest::Tensor& expected, uint64_t checksum);

/// The manifest in a folder that a run has saved; none in that of a model from elsewhere. Throws what
/// parse_manifest() throws.
std::optional<Manifest> find_manifest(const std::string& folder);

/// Throws FileError for a distributed checkpoint of PyTorch's, as TorchTitan saves it under the same names.
void refuse_checkpoint_of_pytorch(const std::string& folder);

/// Reads the manifest of a checkpoint and checks what can be checked without reading tensors: files, sizes,
/// headers and the checksums of small files. Throws FileError that says what is wrong.
Manifest open_checkpoint(const std::string& folder);

}  // namespace ottava::checkpoint
