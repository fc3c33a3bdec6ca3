#include "core/io/atomic_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/folder.h"

namespace ottava {

namespace fs = std::filesystem;

void write_file_atomically(const std::string& path, std::string_view content) {
  const FileToWrite file{path, content};
  write_files_atomically({&file, 1});
}

void write_files_atomically(std::span<const FileToWrite> files) {
  // Several processes, on several machines, may write the same path at once.
  std::random_device random;
  std::vector<std::string> temporaries;
  try {
    for (const FileToWrite& file : files) {
      std::error_code none;
      if (fs::is_directory(file.path, none))
        fail<FileError>("file", "cannot replace {}: it is a folder", file.path);
      temporaries.push_back(fmt::format("{}.tmp{:08x}{:08x}", file.path, random(), random()));
      write_file_synced(temporaries.back(), file.content);
    }
    for (size_t i = 0; i < files.size(); ++i) rename_file("file", temporaries[i], files[i].path);
  } catch (...) {
    for (const std::string& temporary : temporaries) ::unlink(temporary.c_str());
    throw;
  }
  for (const FileToWrite& file : files) {
    const fs::path folder = fs::path(file.path).parent_path();
    sync_folder(folder.empty() ? "." : folder.string());
  }
}

}  // namespace ottava
