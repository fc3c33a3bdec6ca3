#include "apps/commands/given_output.h"

#include <filesystem>

#include "apps/config/outputs.h"
#include "core/error.h"
#include "core/io/output_file.h"

namespace ottava {

void require_named_output(const std::string& file, const std::vector<std::string>& read) {
  namespace fs = std::filesystem;
  if (file.empty()) return;
  std::error_code none;  // what cannot be looked at is named when it is read or written
  for (const std::string& input : read) {
    if (fs::is_regular_file(file, none) && fs::equivalent(file, input, none))
      fail<FileError>("file", "cannot write {}: this command reads it; name another file", file);
  }
  const fs::path target = fs::is_symlink(file, none) ? fs::weakly_canonical(file, none) : fs::path(file);
  if (is_file_of_run(file) || is_file_of_run(target)) {
    fail<FileError>("file",
                    "cannot write {}: it is a file of the run or the checkpoint in that folder; "
                    "name another file",
                    file);
  }
  require_writable(file);
}

}  // namespace ottava
