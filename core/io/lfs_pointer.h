#pragma once

#include <string_view>

namespace ottava {

/// Whether a file is what Git LFS leaves in place of a large file that was not fetched.
inline bool is_lfs_pointer(std::string_view content) {
  return content.starts_with("version https://git-lfs.github.com/spec/");
}

/// What messages say of such a file.
inline constexpr std::string_view kLfsPointer =
    "this is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`";

}  // namespace ottava
