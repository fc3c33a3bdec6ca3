#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace {
std::atomic<int> seconds_ahead = 0;
}  // namespace

// The C library's, in this program.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += seconds_ahead;
  return result;
}

namespace ottava {
namespace {

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

}  // namespace
}  // namespace ottava
