#include "apps/config/installed.h"

namespace ottava {
namespace fs = std::filesystem;

fs::path installed_folder() {
  std::error_code error;
  const fs::path folder =
      fs::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "share/ottava";
  return fs::is_directory(folder, error) ? folder : fs::path();
}

fs::path here_or_installed(const fs::path& path) {
  std::error_code error;
  if (path.empty() || path.is_absolute() || fs::exists(path, error)) return path;
  const fs::path folder = installed_folder();
  return !folder.empty() && fs::exists(folder / path, error) ? folder / path : path;
}

}  // namespace ottava
