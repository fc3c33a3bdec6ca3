#pragma once

#include <string>
#include <string_view>

#include "core/io/descriptor.h"

namespace ottava {

/// Keeps a folder to one run: a lock on `folder`/.lock, held while this lives. The system releases it when
/// the process ends, however it ends, and network file systems honour it between machines; the file says
/// which process has it. If the file system has no locks, a warning says that two runs would not notice each
/// other.
class RunLock {
 public:
  /// Holds nothing.
  RunLock() = default;
  /// Throws FileError if another process has the lock, naming that process, its host and since when, or if
  /// the folder cannot be written. The error is in the name of `key`, the setting that chose the folder.
  RunLock(std::string_view key, const std::string& folder);

 private:
  Descriptor file_;
};

}  // namespace ottava
