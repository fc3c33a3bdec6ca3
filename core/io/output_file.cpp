#include "core/io/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/uninterrupted.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const std::string& path) {
  fail<FileError>("file", "cannot write {}: {}", path, std::strerror(errno));
}

// Renaming would replace a link by a file.
fs::path behind_links(fs::path path) {
  constexpr int kMost = 40;  // as the system follows
  std::error_code error;
  for (int i = 0; i < kMost && fs::is_symlink(path, error); ++i) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;
  }
  if (error && error != std::errc::no_such_file_or_directory)
    fail<FileError>("file", "cannot write {}: {}", path.string(), error.message());
  return path;
}

/// Whether it is there and is no regular file.
bool is_written_into(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && status.type() != fs::file_type::not_found)
    fail<FileError>("file", "cannot write {}: {}", path, error.message());
  return fs::exists(status) && !fs::is_regular_file(status);
}

// `flags` besides those that every file has here.
Descriptor open_output(const std::string& path, int flags) {
  constexpr mode_t kMode = 0666;
  Descriptor file(
      uninterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | flags, kMode); }));
  if (!file.is_open()) fail_to_write(path);
  return file;
}

void write_all(const Descriptor& file, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t wrote = uninterrupted([&] { return ::write(file, content.data(), content.size()); });
    if (wrote < 0) fail_to_write(path);
    content.remove_prefix(static_cast<size_t>(wrote));
  }
}

}  // namespace

void write_output_file(const std::string& path, std::string_view content) {
  if (is_written_into(path)) return write_all(open_output(path, 0), path, content);
  write_file_atomically(behind_links(path).string(), content);
}

OutputLines::OutputLines(std::string path)
    : path_(std::move(path)), file_(open_output(path_, O_CREAT | O_TRUNC | O_APPEND)) {}

void OutputLines::append(std::string line) { write_all(file_, path_, line += '\n'); }

void require_writable(const std::string& path) {
  std::error_code none;
  if (fs::is_directory(path, none)) errno = EISDIR, fail_to_write(path);
  const bool into = is_written_into(path);
  // The dot: a parent that is no folder is an error then.
  const fs::path place = into ? fs::path(path) : behind_links(path).parent_path() / ".";
  if (::access(place.c_str(), into ? W_OK : W_OK | X_OK) != 0) fail_to_write(path);
}

}  // namespace ottava
