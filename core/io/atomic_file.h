#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ottava {

/// Replaces the content of `path` in one step: writes a temporary file beside it, flushes it, renames it over
/// `path` and flushes the folder. A reader sees the old content or the new, even after a crash. On failure
/// the temporary file is removed and the old one untouched; only if the folder could not be flushed is the
/// new one already in place. Throws FileError.
void write_file_atomically(const std::string& path, std::string_view content);

struct FileToWrite {
  std::string path;
  std::string_view content;
};
/// The same for files that belong together: all are written beside before the first is replaced. Then they
/// are replaced one after the other, in their order.
void write_files_atomically(std::span<const FileToWrite> files);

/// write_file_atomically() with the content of the file `from`, of which a few megabytes at a time are in
/// memory.
void copy_file_atomically(const std::string& from, const std::string& path);

/// Removes the temporary files that killed processes have left in `folder`, and returns their paths. One to
/// which something was written in the last ten minutes, by the clock of the machine that keeps the
/// folder (a file server, say), may be that of a process that lives, and stays. What cannot be looked at or
/// removed stays too.
std::vector<std::string> remove_half_written(const std::string& folder);

}  // namespace ottava
