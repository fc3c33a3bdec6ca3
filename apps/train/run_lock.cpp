#include "apps/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/error.h"
#include "core/host_name.h"
#include "core/io/uninterrupted.h"
#include "core/log.h"

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

}  // namespace

RunLock::RunLock(std::string_view key, const std::string& folder) {
  const std::string path = folder + "/.lock";
  // Not emptied before the lock is ours, since until then the file is its owner's.
  file_ = Descriptor(uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }));
  if (!file_.is_open()) fail<FileError>(key, "cannot write {}: {}", path, std::strerror(errno));
  if (uninterrupted([&] { return ::flock(file_, LOCK_EX | LOCK_NB); }) != 0) {
    const int error = errno;
    const std::string owner = owner_of(file_);
    if (error == EWOULDBLOCK) {
      fail<FileError>(key,
                      "{} is in use by {}, and two runs would overwrite each other's checkpoints: wait for "
                      "that run, stop it, or choose another {}",
                      folder, owner, key);
    }
    log::warning("{} cannot be locked ({}): a second run in this folder would go unnoticed", folder,
                 std::strerror(error));
  }
  const std::string text = this_process();
  if (uninterrupted([&] { return ::ftruncate(file_, 0); }) != 0 ||
      uninterrupted([&] { return ::pwrite(file_, text.data(), text.size(), 0); }) != std::ssize(text)) {
    fail<FileError>(key, "cannot write {}: {}", path, std::strerror(errno));
  }
}

}  // namespace ottava
