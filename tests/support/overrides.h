#pragma once

#include <string>
#include <vector>

namespace ottava::test {

/// Words of a command line: "--section.key", "value", ...
using Overrides = std::vector<std::string>;

/// Both, one after the other.
inline Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace ottava::test
