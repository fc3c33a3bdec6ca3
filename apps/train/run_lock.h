#pragma once

#include <string>
#include <string_view>

#include "core/io/descriptor.h"

namespace ottava {

/// One run in a folder: a lock on `folder`/.lock, held while this lives. The system gives it up when the
/// process ends, however it ends, and network file systems keep it between machines; the file says which
/// process has it. Where the file system knows no locks, a warning says that two runs would not notice each
/// other.
class RunLock {
 public:
  /// Holds nothing.
  RunLock() = default;
  /// Throws FileError that names the owner, its host and since when, if another process has it, or for a
  /// folder that cannot be written; in the name of `key`, which chose the folder.
  RunLock(std::string_view key, const std::string& folder);

 private:
  Descriptor file_;
};

}  // namespace ottava
