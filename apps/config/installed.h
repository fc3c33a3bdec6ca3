#pragma once

#include <filesystem>

namespace ottava {

/// The folder installed beside the program: `<prefix>/share/ottava`, with `configs/` and its tokenizers, if
/// the program is `<prefix>/bin/ottava`. Empty if there is none, as in a build folder.
std::filesystem::path installed_folder();

/// `path` if it exists or is absolute; else the same path below installed_folder() if that exists; else
/// `path`.
std::filesystem::path here_or_installed(const std::filesystem::path& path);

}  // namespace ottava
