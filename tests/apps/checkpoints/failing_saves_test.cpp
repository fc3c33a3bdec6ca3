#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "core/io/file.h"
#include "core/io/system_failure.h"
#include "parallel/checkpoint/folder.h"
#include "tests/apps/train/training_runs.h"
#include "tests/support/captured_output.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {
std::function<bool(const std::string& path)> flush_fails;
std::atomic<int> flush_code = EIO;
std::string unread_part;           // of a path
std::atomic<int> unread_call = 0;  // the how manieth call that reads it or looks at it fails; 0: none
std::atomic<int> pauses = 0;
std::string stale_folder;  // how the path of one ends that cannot be made now; empty: none

bool is_unread(const std::string& path) {
  if (unread_call == 0 || !has(path, unread_part) || --unread_call > 0) return false;
  errno = ESTALE;
  return true;
}
}  // namespace

// The C library's, in this program.
extern "C" int fsync(int descriptor) {
  std::error_code none;
  if (flush_fails && flush_fails(fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), none))) {
    errno = flush_code;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
extern "C" ssize_t pread(int descriptor, void* to, size_t bytes, off_t at) {
  std::error_code none;
  if (unread_call > 0 && is_unread(fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), none)))
    return -1;
  return ::syscall(SYS_pread64, descriptor, to, bytes, at);
}
extern "C" int stat(const char* path, struct stat* status) noexcept {
  if (is_unread(path)) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, status, 0));
}
extern "C" int nanosleep(const timespec* time, timespec* rest) {
  if (time->tv_sec < 10) return static_cast<int>(::syscall(SYS_nanosleep, time, rest));
  ++pauses;  // without waiting
  return 0;
}
extern "C" int mkdir(const char* path, mode_t mode) {
  if (!stale_folder.empty() && std::string_view(path).ends_with(stale_folder)) {
    stale_folder.clear();
    errno = ESTALE;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

namespace {

const Overrides kToStepEight{"--training.steps", "8"};

/// Of the flushes of files in whose path `part` is, so many fail, from the first on.
std::function<bool(const std::string&)> failing(const std::string& part, int count) {
  return [part, count, flushes = std::make_shared<std::atomic<int>>(0)](const std::string& path) {
    return has(path, part) && (*flushes)++ < count;
  };
}

std::vector<int64_t> saved_steps(const std::string& run) {
  std::vector<int64_t> steps;
  for (const auto& saved : checkpoint::list_steps(run + "/checkpoint")) steps.push_back(saved.step);
  return steps;
}

}  // namespace

TEST_CASE("a save that the system fails to write is made once more, and the run goes on as without") {
  const std::string mode = GENERATE("disabled", "async", "async_with_pinned_mem");
  const Overrides saving = kSaving + kToStepEight + Overrides{"--checkpoint.async_mode", mode};
  TinyTraining tiny;
  const Everything whole = finish(tiny, "whole", saving);
  const CapturedOutput log;
  flush_fails = failing("step-3.tmp/model", 1);
  CHECK(finish(tiny, "run", saving) == whole);
  CHECK_THAT(log.text(),
             Contains("a checkpoint could not be written, and is tried again: [file] cannot flush ") &&
                 Contains("step-3.tmp/model.safetensors: Input/output error"));
  const std::vector<int64_t> steps = saved_steps(tiny / "run");
  // In the background the next step is saved instead, as soon as the failure is known.
  CHECK((steps.front() == 3) == (mode == "disabled"));
  CHECK((steps.front() <= 6 && steps.end()[-2] == 6 && steps.back() == 8));

  flush_fails = failing("step-", 1'000'000);
  CHECK_THROWS_AS(tiny.start("other", saving)->run(), IoError);
  CHECK(saved_steps(tiny / "other").empty());
  flush_fails = nullptr;
}

TEST_CASE("the error of a save that fails again for what the first failure left names the first, too") {
  const std::string mode = GENERATE("disabled", "async");
  const int code = GENERATE(EIO, ENOSPC);
  flush_code = code;
  const auto first = failing("step-3.tmp/model", 1);
  std::atomic<bool> has_failed = false;
  flush_fails = [&](const std::string& path) {
    if (has_failed) return has(path, "/checkpoint");
    has_failed = first(path);
    return has_failed.load();
  };
  TinyTraining tiny;
  const CapturedOutput log;
  const std::string why = std::string(": ") + std::strerror(code);
  try {
    tiny.start("run", kSaving + kToStepEight + Overrides{"--checkpoint.async_mode", mode})->run();
    FAIL("the run went on");
  } catch (const FileError& error) {
    CHECK((dynamic_cast<const IoError*>(&error) != nullptr) == (code == EIO));
    CHECK_THAT(error.what(), Contains("/checkpoint" + why + "; what failed first: ") &&
                                 Contains("step-3.tmp/model.safetensors" + why));
  }
  flush_code = EIO;
  flush_fails = nullptr;
}

TEST_CASE(
    "where there is no room, or writing is not permitted, a run goes on to its next save, which may end it") {
  const std::string mode = GENERATE("disabled", "async");
  const int code = GENERATE(ENOSPC, EROFS);
  const Overrides saving = kSaving + kToStepEight + Overrides{"--checkpoint.async_mode", mode};
  TinyTraining tiny;
  const Everything whole = finish(tiny, "whole", saving);
  const CapturedOutput log;
  flush_code = code;
  flush_fails = failing("step-3.tmp/model", 1);
  CHECK(finish(tiny, "run", saving) == whole);
  CHECK_THAT(log.text(),
             Contains(code == ENOSPC ? "the run goes on without it: make room before the next one is due"
                                     : "the run goes on without it: permit it before the next one is due") &&
                 Contains(std::string("step-3.tmp/model.safetensors: ") + std::strerror(code)));
  CHECK(saved_steps(tiny / "run") == std::vector<int64_t>{6, 8});

  flush_fails = failing("step-", 1'000'000);
  TinyTraining::Run ends = tiny.start("ends", saving);
  const auto ends_with_its_kind = [code](const TinyTraining::Run& run) {
    if (code == ENOSPC)
      CHECK_THROWS_AS(run.trainer->run(), FullDisk);
    else
      CHECK_THROWS_AS(run.trainer->run(), NoAccess);
  };
  ends_with_its_kind(ends);
  if (mode == "disabled") CHECK(ends->state().step < 8);  // in the background the last step may be over
  CHECK(saved_steps(tiny / "ends").empty());

  flush_fails = failing("step-8.tmp/model", 1);  // the last
  ends_with_its_kind(tiny.start("last", saving));
  CHECK(saved_steps(tiny / "last") == std::vector<int64_t>{3, 6});
  flush_fails = nullptr;
  flush_code = EIO;
}

TEST_CASE("a run whose folder goes while a save writes into it goes on to its next save") {
  const std::string mode = GENERATE("disabled", "async");
  const Overrides saving = kSaving + kToStepEight + Overrides{"--checkpoint.async_mode", mode};
  TinyTraining tiny;
  const Everything whole = finish(tiny, "whole", saving);
  // What is flushed shows the place: after the weights, after the small files and at the end of a save.
  const auto is_gone_at = [&](const std::string& part, int flush) {
    fs::remove_all(tiny / "gone");
    flush_fails = [&, part, flush, flushes = std::make_shared<std::atomic<int>>(0)](const std::string& path) {
      if (has(path, part) && ++*flushes == flush) fs::rename(tiny / "run", tiny / "gone");
      return false;
    };
    fs::remove_all(tiny / "run");
    const CapturedOutput log;
    CHECK(finish(tiny, "run", saving) == whole);
    flush_fails = nullptr;
    CHECK(fs::exists(tiny / "gone"));
    return log.text();
  };
  const std::string files = GENERATE("model.safetensors", "config.json", "manifest.json");
  const std::string log = is_gone_at("run/checkpoint/step-3.tmp/" + files, 1);
  CHECK_THAT(log, Contains("the run goes on without it: put its folder back before the next one is due") &&
                      Contains(": No such file or directory"));
  CHECK(saved_steps(tiny / "run") == std::vector<int64_t>{6, 8});

  pauses = 0;
  const std::string of_last = is_gone_at("run/checkpoint/step-8.tmp/" + files, 1);
  CHECK_THAT(of_last, Contains("a checkpoint could not be written, and is tried again, in a new folder") &&
                          Contains(": No such file or directory"));
  CHECK(saved_steps(tiny / "run") == std::vector<int64_t>{8});
  CHECK(pauses == 1);

  // The last is made once more, though the one before it failed, too.
  std::atomic<int> moved = 0;
  flush_fails = [&](const std::string& path) {
    if (has(path, (moved == 0 ? "run/checkpoint/step-6.tmp/" : "run/checkpoint/step-8.tmp/") + files) &&
        moved < 2) {
      ++moved;
      fs::remove_all(tiny / "gone");
      fs::rename(tiny / "run", tiny / "gone");
    }
    return false;
  };
  fs::remove_all(tiny / "run");
  CHECK(finish(tiny, "run", saving) == whole);
  CHECK(moved == 2);
  CHECK(saved_steps(tiny / "run") == std::vector<int64_t>{8});

  // Where a file has taken the place of the folder, none can be made.
  flush_fails = [&](const std::string& path) {
    if (has(path, "run/checkpoint/step-3.tmp/" + files) && fs::is_directory(tiny / "run")) {
      fs::remove_all(tiny / "gone");
      fs::rename(tiny / "run", tiny / "gone");
      write_file_synced(tiny / "run", "");
    }
    return false;
  };
  fs::remove_all(tiny / "run");
  const TinyTraining::Run ends = tiny.start("run", saving);
  CHECK_THROWS_AS(ends.trainer->run(), Missing);
  CHECK(ends.trainer->state().step >= 6);
  flush_fails = nullptr;
}

TEST_CASE("a run whose folder is behind a link that leads nowhere for a while goes on to its next save") {
  TinyTraining tiny;
  const Overrides saving = kSaving + kToStepEight;
  fs::create_directories(tiny / "disk");
  fs::create_directory_symlink("disk", tiny / "run");
  const TinyTraining::Run run = tiny.start("run", saving);
  run.trainer->step(nullptr);
  const CapturedOutput log;
  fs::rename(tiny / "disk", tiny / "gone");
  Checkpoints& checkpoints = run.trainer->checkpoints();
  const auto save = [&] { return checkpoints.save(run.trainer->engine(), run.trainer->state(), false); };
  CHECK_FALSE(save());
  CHECK_THAT(log.text(),
             Contains("put its folder back") && Contains("is a link to disk, which cannot be followed"));
  fs::rename(tiny / "gone", tiny / "disk");
  CHECK(save());
  CHECK(saved_steps(tiny / "run") == std::vector<int64_t>{1});
}

TEST_CASE("a file of a checkpoint that cannot be read for a moment, by whatever reads it, changes nothing") {
  const std::string part = GENERATE("training_state.json", "config.json", "manifest.json");
  TinyTraining tiny;
  const Overrides saving = kSaving + kToStepEight;
  const Everything whole = finish(tiny, "whole", saving);
  finish(tiny, "run", saving);
  const CapturedOutput log;
  unread_part = "step-6/" + part;
  bool is_read = true;
  for (int call = 1; is_read; ++call) {
    fs::remove_all(tiny / "run/checkpoint/step-8");
    unread_call = call;
    CHECK(finish(tiny, "run", saving, 6) == whole);
    is_read = unread_call == 0;
  }
  unread_call = 0;
}

TEST_CASE("a save whose folder cannot be made for a moment is made once more") {
  TinyTraining tiny;
  const CapturedOutput log;
  pauses = 0;
  stale_folder = "step-3.tmp";
  tiny.start("run", kSaving + kToStepEight)->run();
  CHECK(stale_folder.empty());
  CHECK_THAT(log.text(), Contains("a checkpoint could not be written, and is tried again: [checkpoint] "
                                  "cannot create the folder "));
  CHECK(saved_steps(tiny / "run").front() == 3);
  CHECK(pauses == 1);
}

TEST_CASE("a save that has failed is due at any step until one has succeeded") {
  TinyTraining tiny;
  const TinyTraining::Run run = tiny.start("run", kSaving + Overrides{"--checkpoint.async_mode", "async"});
  run.trainer->step(nullptr);
  Checkpoints& checkpoints = run.trainer->checkpoints();
  const auto save = [&] {
    checkpoints.save(run.trainer->engine(), run.trainer->state(), false);
    return checkpoints.finish_or_repeat();
  };
  flush_fails = failing("model", 1);
  CHECK_FALSE(save());
  CHECK(checkpoints.is_due(1, false));
  CHECK(save());
  CHECK_FALSE(checkpoints.is_due(1, false));
  CHECK(saved_steps(tiny / "run") == std::vector<int64_t>{1});
  flush_fails = failing("model", 2);
  CHECK_FALSE(save());
  CHECK_THROWS_AS(save(), IoError);
  flush_fails = nullptr;
}
