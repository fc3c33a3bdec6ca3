#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/io/descriptor.h"

namespace ottava {

/// How long a lock of another machine is waited for. That machine may be gone: a file server keeps its locks
/// until it has heard nothing of it for a while (Linux's for 90 s), and a job that is requeued comes sooner.
struct LockPatience {
  double seconds = 150;
  std::function<bool()> is_over = {};  ///< ends it early; may be empty
};

/// Keeps a folder to one run: a lock on `folder`/.lock, held while this lives. The system releases it when
/// the process ends, however it ends, and network file systems honour it between machines; the file says
/// which process has it. If the file system has no locks, a warning says that two runs would not notice each
/// other.
class RunLock {
 public:
  /// Holds nothing.
  RunLock() = default;
  /// Throws FileError if another process has the lock, naming that process, its host and since when, or if
  /// the folder cannot be written or locked (of a system that fails an IoError); at once if the process is of
  /// this machine, else after `patience`, of which the log tells. The error is in the name of `key`, the
  /// setting that chose the folder.
  RunLock(std::string_view key, const std::string& folder, const LockPatience& patience = {});

  /// Warns, once, if `folder` is no longer the one that was locked: while a run has it, it may be moved,
  /// deleted or replaced.
  void warn_if_gone();

 private:
  bool lock() const;
  bool lock_later(const std::string& folder, const LockPatience& patience) const;

  Descriptor file_;
  std::string folder_;
  bool has_warned_ = false;
};

}  // namespace ottava
