#pragma once

#include <string>
#include <string_view>

namespace ottava {

/// Writes what a person asked for into the file that they named. A link is followed, and a regular file, or
/// one that is not there yet, is replaced in one step (write_file_atomically()); anything else, as a pipe or
/// a device, stays what it is and is written into. Throws FileError.
void write_output_file(const std::string& path, std::string_view content);

}  // namespace ottava
