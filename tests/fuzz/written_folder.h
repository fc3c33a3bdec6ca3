#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/io/file.h"
#include "core/log.h"

namespace ottava::test {

/// A folder of the process for files whose bytes are an input; only errors are logged.
struct WrittenFolder {
  std::string path = (std::filesystem::temp_directory_path() / "ottava-fuzz-XXXXXX").string();
  WrittenFolder() {
    if (!::mkdtemp(path.data())) std::abort();
    log::set_level(log::Level::error);
  }
  ~WrittenFolder() { std::filesystem::remove_all(path); }

  /// The path of the file.
  std::string write(const char* name, std::string_view bytes) const {
    std::string file_path = path + "/" + name;
    // A new file each time: some file systems flush one that is emptied and written again, which costs
    // milliseconds.
    std::filesystem::remove(file_path);
    File file = File::create(file_path);
    file.write_at(bytes.data(), bytes.size(), 0);
    return file_path;
  }
};

}  // namespace ottava::test
