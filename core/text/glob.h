#pragma once

#include <fnmatch.h>

#include <string>

namespace ottava {

/// Whether the whole of `name` matches a pattern of fnmatch(3): `*` any characters, `?` any one, `[a-c]` one
/// of a set, `[!a-c]` one outside it, `\` before a character that stands for itself.
inline bool glob_matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace ottava
