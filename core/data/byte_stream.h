#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/io/file.h"

namespace ottava::data {

/// Appends bytes [offset, min(offset + bytes, size)) of the file to `out` and returns how many that were.
/// Throws FileError.
int64_t append_range(const File& file, int64_t offset, int64_t bytes, std::string& out);

enum class Compression : uint8_t { none, gzip, zstd };

/// A file's contents from its start, decompressed. Several consecutive gzip members or zstd frames are one
/// content.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Appends up to `bytes` bytes and returns how many; 0: the content has ended. Throws FileError naming path
  /// and offset if the file cannot be read, is damaged, or ends in the middle of a compressed frame.
  virtual size_t append(std::string& out, size_t bytes) = 0;
};

/// Opens a file. Throws FileError.
std::unique_ptr<ByteStream> open_stream(const std::string& path, Compression compression);

}  // namespace ottava::data
