#include "core/io/atomic_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>

#include "core/error.h"
#include "core/io/file.h"

namespace ottava {

void write_file_atomically(const std::string& path, std::string_view content) {
  // Several processes, on several machines, may write the same path at once.
  std::random_device random;
  std::string temporary = fmt::format("{}.tmp{:08x}{:08x}", path, random(), random());
  try {
    write_file_synced(temporary, content);
    rename_file("file", temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  sync_folder(folder.empty() ? "." : folder.string());
}

std::error_code make_writable_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK | X_OK) != 0) error.assign(errno, std::generic_category());
  return error;
}

}  // namespace ottava
