#pragma once

#include <unistd.h>

#include <string>

namespace ottava {

/// The machine's name; `unknown` where the system does not tell.
inline std::string host_name(std::string unknown = {}) {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : unknown;
}

}  // namespace ottava
