#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"

namespace ottava {

/// Starts a thread without which its owner cannot work. `what` says what it does: "takes stop signals".
/// Throws Error if the system allows the user or the container no more threads, or the process no stack for
/// one.
template <class Work>
std::thread start_thread(std::string_view where, std::string_view what, Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    fail<Error>(where,
                "cannot start the thread that {}: {}; end other processes, or raise the limit of threads "
                "(ulimit -u, or pids.max of the container) or of address space (ulimit -v), if there is one",
                what, error.code().message());
  }
}

}  // namespace ottava
