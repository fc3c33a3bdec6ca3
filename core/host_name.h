#pragma once

#include <unistd.h>

#include <string>

namespace ottava {

/// The machine's name, or `unknown` if the system does not tell it.
inline std::string host_name(std::string unknown = {}) {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : unknown;
}

}  // namespace ottava
