#include <dirent.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>

#include "tests/parallel/checkpoint/tiny_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace {
std::atomic<int> failing_reads = 0;  // how many more there are
std::string unreadable;              // part of a path; empty: none
std::atomic<int> failing_lists = 0;  // of a folder's names
int why_lists_fail = ESTALE;
}  // namespace

// The C library's, in this program.
extern "C" ssize_t pread(int descriptor, void* to, size_t bytes, off_t at) {
  if (failing_reads > 0) {
    std::error_code none;
    const std::string path =
        std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), none).string();
    if (path.find(unreadable) != std::string::npos && failing_reads-- > 0) {
      errno = ESTALE;
      return -1;
    }
  }
  return ::syscall(SYS_pread64, descriptor, to, bytes, at);
}

extern "C" dirent* readdir(DIR* folder) {
  if (failing_lists > 0) {
    --failing_lists;
    errno = why_lists_fail;
    return nullptr;
  }
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  return real(folder);
}

namespace ottava::checkpoint {
namespace {

TEST_CASE("a checkpoint that the system cannot read for a moment is loaded, not passed over") {
  TemporaryFolder folder;
  for (int step : {4, 5}) save(folder.path(), {}, step, step);
  const auto loaded_when = [&](const std::string& part, int failures) {
    std::atomic<int> sum = 0;
    unreadable = part, failing_reads = failures;
    run_ranks({.shards = 2}, [&](PatientRanks& group, ShardCoordinates at) {
      TinyRank rank(tiny_model(), at);
      const auto loaded = load_newest(folder.path(), rank.parameters, group, -1, {.retry_seconds = 0.001});
      if (loaded && rank.wrong(loaded->manifest.step) == 0) sum += static_cast<int>(loaded->manifest.step);
    });
    failing_reads = 0;
    return sum / 2;
  };
  CHECK(loaded_when("step-5/optimizer", 1) == 5);
  CHECK(loaded_when("step-5/manifest", 2) == 5);
  CHECK(loaded_when("step-5/", 1'000'000) == 4);
}

TEST_CASE("a folder of checkpoints that the system cannot list for a moment is listed again") {
  TemporaryFolder folder;
  save(folder.path(), {}, 4, 4);
  PatientRanks group;
  TinyRank rank(tiny_model());
  const auto loaded_after = [&](int failures) {
    failing_lists = failures;
    const auto loaded = load_newest(folder.path(), rank.parameters, group, -1, {.retry_seconds = 0.001});
    return loaded ? loaded->manifest.step : -1;
  };
  for (const int code : {ESTALE, ENOENT}) {
    why_lists_fail = code;
    CHECK(loaded_after(2) == 4);
    CHECK_THROWS_AS(loaded_after(3), IoError);
    CHECK(failing_lists == 0);
  }
}

}  // namespace
}  // namespace ottava::checkpoint
