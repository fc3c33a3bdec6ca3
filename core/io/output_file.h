#pragma once

#include <string>
#include <string_view>

#include "core/io/descriptor.h"

namespace ottava {

/// Writes output to the file that a user named. Follows a link; a regular file, or one that does not exist
/// yet, is replaced in one step (write_file_atomically()); anything else, such as a pipe or a device, is
/// written into. Throws FileError.
void write_output_file(const std::string& path, std::string_view content);

/// Output of lines that take long to make: each is there as soon as it is made, whatever becomes of the rest.
class OutputLines {
 public:
  /// Begins a regular file anew, or one that does not exist yet; follows a link; anything else is written
  /// into. Throws FileError, as append() does.
  explicit OutputLines(std::string path);
  /// Hands the line and its line feed to the system.
  void append(std::string line);

 private:
  std::string path_;
  Descriptor file_;
};

/// For output that takes long to make: throws the FileError now if the file's folder is not there, or if it
/// is plain that the file cannot be written.
void require_writable(const std::string& path);

}  // namespace ottava
