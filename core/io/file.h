#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/io/descriptor.h"

namespace ottava {

/// An open file. All reads and writes are at offsets and complete: short transfers are continued and
/// retried after EINTR. Everything throws FileError that names the path and the system's reason.
class File {
 public:
  File() = default;
  /// Refuses anything but a regular file, a pipe at once.
  static File open_for_reading(const std::string& path);
  /// Opens an existing file for writing at offsets.
  static File open_for_writing(const std::string& path);
  /// Creates or empties the file, for writing only: several machines may write parts of it at once.
  static File create(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const;
  /// Reads exactly `bytes` bytes; it is an error if the file ends before that.
  void read_at(void* data, size_t bytes, int64_t offset) const;
  void write_at(const void* data, size_t bytes, int64_t offset);
  /// write_at() for long files: data goes to the device while more is written, and little of it stays in
  /// memory (otherwise the page cache would keep a file as large as free memory, each page newly allocated).
  /// If `data` and `offset` are equal modulo kBlock, and the file system can, whole blocks go directly to the
  /// device (O_DIRECT), for a sixth of the processor time. A failure of the device is thrown as one of a
  /// write. Does not guarantee that the device has everything; sync() does.
  void write_uncached(const void* data, size_t bytes, int64_t offset);
  static constexpr int64_t kBlock = 4096;
  /// Makes the file `bytes` long and, if the file system can, reserves the space, so that a full disk is
  /// noticed now.
  void reserve(int64_t bytes);
  void truncate(int64_t bytes);
  /// Flushes to the device.
  void sync();
  /// Closes the file and throws errors that closing reports (NFS writes back here).
  void close();

 private:
  File(std::string path, int flags);
  size_t write_blocks(const char* from, size_t bytes, int64_t offset);
  void write_behind(int64_t offset, int64_t bytes);

  std::string path_;
  Descriptor descriptor_;
  struct Span {
    int64_t begin = 0, end = 0;
    int64_t bytes() const { return end - begin; }
  };
  Span fresh_, on_the_way_;  ///< of write_behind()
};

/// The whole file. Throws FileError if it is longer than `limit_bytes`.
std::string read_file(const std::string& path, int64_t limit_bytes = int64_t{1} << 30);
/// Creates or empties the file, writes all of it and flushes it to the device. Throws FileError.
void write_file_synced(const std::string& path, std::string_view content);

/// Renames a file. Throws FileError in the name of `where`.
void rename_file(std::string_view where, const std::string& from, const std::string& to);

}  // namespace ottava
