#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/uninterrupted.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace {
// How many calls a signal interrupts from now on, as one does on a network file system.
int interruptions = 0;

bool is_interrupted() {
  if (interruptions == 0) return false;
  --interruptions;
  errno = EINTR;
  return true;
}
}  // namespace

// The C library's, in this program.
extern "C" int fsync(int descriptor) {
  return is_interrupted() ? -1 : static_cast<int>(::syscall(SYS_fsync, descriptor));
}
extern "C" int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  return is_interrupted() ? -1 : static_cast<int>(::syscall(SYS_fallocate, descriptor, mode, offset, bytes));
}
extern "C" int ftruncate(int descriptor, off_t bytes) noexcept {
  return is_interrupted() ? -1 : static_cast<int>(::syscall(SYS_ftruncate, descriptor, bytes));
}

namespace ottava {
namespace {

TEST_CASE("a signal that interrupts a call on a file is no error") {
  TemporaryFolder folder;
  File file = File::create(folder / "a");
  const auto interrupted = [](auto&& work) {
    interruptions = 2;
    CHECK_NOTHROW(work());
    CHECK(interruptions == 0);
  };
  interrupted([&] { file.reserve(10); });
  CHECK(file.size() == 10);
  interrupted([&] { file.truncate(5); });
  CHECK(file.size() == 5);
  interrupted([&] { file.sync(); });
  interrupted([&] { sync_folder(folder.path()); });
}

TEST_CASE("a call that fails for another reason than a signal is made once") {
  int calls = 0;
  const int result = uninterrupted([&] {
    errno = ++calls < 3 ? EINTR : EIO;
    return -1;
  });
  CHECK(result == -1);
  CHECK(errno == EIO);
  CHECK(calls == 3);
}

}  // namespace
}  // namespace ottava
