#pragma once

#include <string>
#include <string_view>

namespace ottava {

/// Writes output to the file that a user named. Follows a link; a regular file, or one that does not exist
/// yet, is replaced in one step (write_file_atomically()); anything else, such as a pipe or a device, is
/// written into. Throws FileError.
void write_output_file(const std::string& path, std::string_view content);

/// For output that takes long to make: throws the FileError now if the file's folder is not there, or if it
/// is plain that the file cannot be written.
void require_writable(const std::string& path);

}  // namespace ottava
