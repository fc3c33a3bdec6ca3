#include "apps/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

#include "core/contains.h"
#include "core/error.h"
#include "core/host_name.h"
#include "core/io/system_failure.h"
#include "core/io/uninterrupted.h"
#include "core/log.h"
#include "parallel/calls/waited_time.h"

namespace ottava {
namespace {

std::string this_process() {
  char when[32] = {};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
  return fmt::format("process {} on {} since {}", ::getpid(), host_name("an unnamed host"), when);
}

std::string owner_of(int file) {
  char text[512] = {};
  const ssize_t length = ::pread(file, text, sizeof text - 1, 0);
  return length > 0 ? std::string(text, length) : "another process";
}

// As this_process() has written it there.
bool is_of_another_machine(const std::string& owner) {
  return contains_text(owner, " on ") &&
         !contains_text(owner, fmt::format(" on {} since ", host_name("an unnamed host")));
}

}  // namespace

bool RunLock::lock() const {
  return uninterrupted([&] { return ::flock(file_, LOCK_EX | LOCK_NB); }) == 0;
}

bool RunLock::lock_later(const std::string& folder, const LockPatience& patience) const {
  log::info("{} is in use by {}; if that machine is gone, its lock goes too: waiting for at most {:g} s",
            folder, owner_of(file_), patience.seconds);
  for (WaitedTime time; time.seconds() < patience.seconds && !(patience.is_over && patience.is_over());) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (lock()) return true;
  }
  return false;
}

RunLock::RunLock(std::string_view key, const std::string& folder, const LockPatience& patience)
    : folder_(folder) {
  const std::string path = folder + "/.lock";
  // Not emptied before the lock is ours, since until then the file is its owner's.
  file_ = Descriptor(uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }));
  const auto require = [&](bool is_done) {
    if (is_done) return;
    const int code = errno;
    fail_for_system(code, key, "cannot write " + path);
  };
  require(file_.is_open());
  bool is_locked = lock();
  const int error = errno;
  if (!is_locked && error == EWOULDBLOCK) {
    is_locked = is_of_another_machine(owner_of(file_)) && lock_later(folder, patience);
    if (!is_locked)
      fail<FileError>(key,
                      "{} is in use by {}, and two runs would overwrite each other's checkpoints: wait for "
                      "that run, stop it, or choose another {}",
                      folder, owner_of(file_), key);
  }
  // Says nothing of whether another has it; that a file system has no locks is another error.
  if (!is_locked && is_of_system(error)) fail_for_system(error, key, "cannot lock " + path);
  if (!is_locked) {
    log::warning("{} cannot be locked ({}): a second run in this folder would go unnoticed", folder,
                 std::strerror(error));
  }
  const std::string text = this_process();
  require(uninterrupted([&] { return ::ftruncate(file_, 0); }) == 0 &&
          uninterrupted([&] { return ::pwrite(file_, text.data(), text.size(), 0); }) == std::ssize(text));
}

void RunLock::warn_if_gone() {
  struct stat locked = {}, now = {};
  if (has_warned_ || ::fstat(file_, &locked) != 0) return;
  const bool is_there = ::stat((folder_ + "/.lock").c_str(), &now) == 0;
  // A file server that does not answer says nothing of the folder.
  if (!is_there && errno != ENOENT && errno != ENOTDIR) return;
  if (is_there && now.st_dev == locked.st_dev && now.st_ino == locked.st_ino) return;
  has_warned_ = true;
  log::warning(
      "{0} is not the folder that this run locked, which was moved, deleted or replaced: files that are "
      "open, like the metrics, stay with that one, others come into {0} as it is now, and a second run there "
      "would go unnoticed: stop this run, and move what belongs together into one folder before the next "
      "start",
      folder_);
}

}  // namespace ottava
