#include "core/config/source.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"

namespace ottava::config {

void check_size(std::string_view text, std::string_view name) {
  if (text.size() > kMaxBytes)
    fail<ConfigError>("config", "{}: it has {} bytes, but a configuration has at most {}", name, text.size(),
                      kMaxBytes);
}

Value read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    fail<FileError>("config", "{} is a folder, expected a file: .yaml, .yml or .toml", path.string());
  }
  std::string extension = path.extension().string();
  bool is_yaml = extension == ".yaml" || extension == ".yml";
  if (!is_yaml && extension != ".toml") {
    fail<ConfigError>("config", "{}: the file name ends in '{}', expected .yaml, .yml or .toml",
                      path.string(), extension);
  }
  auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none)
    fail<FileError>("config", "cannot read {}: {}", path.string(), error.message());
  if (!std::filesystem::exists(status)) {
    fail<FileError>("config", "{} does not exist (current directory: {})", path.string(),
                    std::filesystem::current_path(error).string());
  }
  if (!std::filesystem::is_regular_file(status))
    fail<FileError>("config", "{} is not a regular file", path.string());
  uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) fail<FileError>("config", "cannot read {}: {}", path.string(), error.message());
  if (bytes > kMaxBytes) {
    fail<FileError>("config",
                    "{} has {} bytes, but a configuration has at most {}; is it another kind of file?",
                    path.string(), bytes, kMaxBytes);
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(bytes, '\0');
  if (!in || (bytes > 0 && !in.read(text.data(), static_cast<std::streamsize>(bytes)))) {
    fail<FileError>("config", "cannot read {}: {}", path.string(), std::strerror(errno));
  }
  return is_yaml ? parse_yaml(text, path.string()) : parse_toml(text, path.string());
}

}  // namespace ottava::config
