#include "core/io/system_failure.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/json_lines.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace {
std::atomic<int> seconds_ahead = 0;
std::string out_of_sight;  // the path of which a server does not answer whether it is there
std::atomic<bool> disk_is_full = false;
}  // namespace

// The C library's, in this program.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += seconds_ahead;
  return result;
}

extern "C" int stat(const char* path, struct stat* status) noexcept {
  if (path != out_of_sight) return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, status, 0));
  errno = EIO;
  return -1;
}

extern "C" ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t at) {
  if (!disk_is_full) return ::syscall(SYS_pwrite64, descriptor, from, bytes, at);
  errno = ENOSPC;
  return -1;
}

namespace ottava {
namespace {

TEST_CASE("what servers and devices fail with is told from what is wrong with a file") {
  for (const int code : {EIO, ESTALE, ECOMM, EREMOTEIO, ETIMEDOUT, EINTR})
    CHECK_THROWS_AS(fail_for_system(code, "file", "cannot read a"), IoError);
  for (const int code : {ENOSPC, EDQUOT})
    CHECK_THROWS_AS(fail_for_system(code, "file", "cannot write a"), FullDisk);
  for (const int code : {EACCES, EPERM, EROFS, EKEYEXPIRED})
    CHECK_THROWS_AS(fail_for_system(code, "file", "cannot open a"), NoAccess);
  for (const int code : {ENOENT, ENOTDIR})
    CHECK_THROWS_AS(fail_for_system(code, "file", "cannot open a"), Missing);
  for (const int code : {EFBIG, EISDIR}) {
    try {
      fail_for_system(code, "file", "cannot read a");
    } catch (const FileError& error) {
      CHECK(typeid(error) == typeid(FileError));
    }
  }
}

TEST_CASE("metrics of a run that goes on are not made anew when a server does not answer") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  JsonLines(path, 0).append(1, {{"loss", 2.5}});
  const std::string before = read_file(path);
  out_of_sight = path;
  CHECK_THROWS_AS(JsonLines(path, 1), IoError);
  out_of_sight.clear();
  CHECK(read_file(path) == before);
}

TEST_CASE("what a process of another clock writes just now is not taken for the leftover of a killed one") {
  TemporaryFolder folder;
  const std::string half = folder / "a.tmp0123456789abcdef";
  write_file_synced(half, "{");
  seconds_ahead = 3600;
  const std::vector<std::string> removed = remove_half_written(folder.path());
  seconds_ahead = 0;
  CHECK(removed.empty());
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a.tmp0123456789abcdef"});
}

TEST_CASE("what a killed process left half written makes room on a full disk") {
  TemporaryFolder folder;
  const std::string half = folder / "a.tmp0123456789abcdef";
  write_file_synced(half, "{");
  std::filesystem::last_write_time(half,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  disk_is_full = true;
  const std::vector<std::string> removed = remove_half_written(folder.path());
  disk_is_full = false;
  CHECK(removed == std::vector<std::string>{half});
  CHECK(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace ottava
