#pragma once

#include <cerrno>

namespace ottava {

/// Makes a system call, again for as long as a signal interrupts it (EINTR), and returns what it returns.
template <class Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace ottava
