#pragma once

#include <filesystem>

namespace ottava {

/// What was installed beside the program: `<prefix>/share/ottava` where the program is `<prefix>/bin/ottava`,
/// with `configs/` and its tokenizers. Empty where there is none, as in a build folder.
std::filesystem::path installed_folder();

/// `path` where it is there or absolute, else below installed_folder() where that has it, else `path`.
std::filesystem::path here_or_installed(const std::filesystem::path& path);

}  // namespace ottava
