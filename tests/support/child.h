#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"

namespace ottava::test {

/// How a child ends whose work threw FileError, or anything else.
inline constexpr int kThrewFileError = 7, kThrew = 8;

/// Runs `work` in a child process, which ends with it, with 0 if it returns; it never comes back to the test
/// cases that are still to run.
template <class Work>
pid_t start_child(const Work& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    work();
  } catch (const FileError&) {
    ::_exit(kThrewFileError);
  } catch (...) {
    ::_exit(kThrew);
  }
  ::_exit(0);
}

/// Waits for it, and returns its wait status.
inline int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

/// Its status after its work.
template <class Work>
int in_child(const Work& work) {
  return status_of(start_child(work));
}

}  // namespace ottava::test
