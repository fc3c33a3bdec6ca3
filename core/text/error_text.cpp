#include "core/text/error_text.h"

#include <filesystem>

#include <fmt/core.h>

namespace ottava {

std::string error_text(const std::exception& error) {
  const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
  if (!of_files) return error.what();
  // What is said of a step through a folder, or of the current one, names no path.
  if (of_files->path1().empty())
    return fmt::format("[file] the system failed: {}", of_files->code().message());
  return fmt::format("[file] cannot use {}: {}", of_files->path1().string(), of_files->code().message());
}

}  // namespace ottava
