#pragma once

#include <string>
#include <string_view>
#include <system_error>

namespace ottava {

/// Replaces `path` by `content` in one step: a temporary file beside it is written, flushed and renamed over
/// it, then the folder is flushed. A reader sees the old content or the new one, also after a crash. On any
/// failure the temporary file is removed and the old one is untouched, unless it was the folder that could
/// not be flushed: then the new one is in its place. Throws FileError.
void write_file_atomically(const std::string& path, std::string_view content);

/// Makes the folder, where it is not there, with those above it; why nothing can be written into it, or no
/// error.
std::error_code make_writable_folder(const std::string& folder);

}  // namespace ottava
