#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ottava::data {

/// An open file that is read at offsets, by any thread. Errors name the path.
class RandomAccessFile {
 public:
  /// Throws FileError when the file cannot be opened or is not a regular file.
  explicit RandomAccessFile(std::string path);
  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&&) = delete;
  ~RandomAccessFile();

  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  /// Fills exactly `bytes`; throws FileError when the file ends before (it shrank, or a header promised too much).
  void read(void* out, int64_t bytes, int64_t offset) const;
  /// Appends [offset, min(offset + bytes, size())) to `out`; returns how many bytes that was.
  int64_t append(std::string& out, int64_t bytes, int64_t offset) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

enum class Compression : uint8_t { none, gzip, zstd };

/// A file's contents from its start, decompressed: several gzip members or zstd frames in a row are one content.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Appends up to `bytes` bytes; 0 means the content has ended. Throws FileError naming path and offset when the file
  /// cannot be read, is damaged, or ends in the middle of a compressed frame.
  virtual size_t append(std::string& out, size_t bytes) = 0;
};

std::unique_ptr<ByteStream> open_stream(const std::string& path, Compression compression);

}  // namespace ottava::data
