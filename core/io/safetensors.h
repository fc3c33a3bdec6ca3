#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/io/file.h"

namespace ottava {

/// Layout of a file (https://huggingface.co/docs/safetensors): 8 bytes little-endian length L, L bytes of
/// JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {text: text}}, then the
/// data. Offsets count from the end of the header; the tensors cover the data without holes or overlaps.
struct SafetensorsEntry {
  std::string name;
  std::string_view type;       ///< "F32", "BF16", ... as stored; static text
  std::optional<DType> dtype;  ///< empty for types that are not used here (BOOL, I8, ...)
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  ///< bytes, from the start of the data

  int64_t numel() const;
  /// The matrix that rectangles refer to: [rows, columns], where columns is the last extent; vectors are [n,
  /// 1].
  int64_t rows() const { return shape.size() < 2 ? numel() : columns() == 0 ? 0 : numel() / columns(); }
  int64_t columns() const { return shape.size() < 2 ? 1 : shape.back(); }
  /// "[19]" in a vector, "[4, 35]" in that matrix: where the element of this index is.
  std::string place_of(int64_t index) const;
};

/// The header of a file, parsed.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;                      ///< in order of their data
  std::vector<std::pair<std::string, std::string>> metadata;  ///< "__metadata__"
  int64_t data_begin = 0;                                     ///< byte of the file where the data starts
  int64_t data_bytes = 0;
};

/// An entry for a tensor that begins at byte `begin` of the data. Throws ConfigError for a dtype that the
/// format has no name for.
SafetensorsEntry make_safetensors_entry(std::string name, DType dtype, std::vector<int64_t> shape,
                                        int64_t begin);
/// Length word and JSON, padded with spaces to a multiple of 64 bytes: what a file with these tensors begins
/// with. The same tensors give the same bytes.
std::string make_safetensors_header(const SafetensorsHeader& header);

/// Bytes of the JSON, from the first 8 bytes of a file. Throws FileError for a length beyond the file or the
/// format's limit of 100 MB; the message says so if the bytes look like a Git LFS pointer or a PyTorch file.
int64_t parse_safetensors_length(std::string_view first_bytes, int64_t file_bytes, std::string_view where);
/// The JSON of a file with `data_bytes` of data. Nothing in it is trusted: duplicate names, unknown types,
/// offsets that do not fit the shape, holes, overlaps and data outside the file throw FileError that begins
/// with `where`.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, std::string_view where);

/// A safetensors file opened for reading. The header is validated when it is opened.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  /// Null when the file has no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;
  const File& file() const { return file_; }

 private:
  File file_;
  SafetensorsHeader header_;
  std::map<std::string_view, const SafetensorsEntry*> by_name_;
};

}  // namespace ottava
