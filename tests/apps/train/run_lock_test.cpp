#include "apps/train/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/contains.h"
#include "core/host_name.h"
#include "core/io/descriptor.h"
#include "core/io/file.h"
#include "tests/apps/commands/tiny_runs.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {
int interruptions = 0;  // how many locks a signal interrupts from now on
}

// The C library's, in this program.
extern "C" int flock(int descriptor, int operation) noexcept {
  if (interruptions == 0) return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  --interruptions;
  errno = EINTR;
  return -1;
}

TEST_CASE("a dump folder belongs to one run at a time") {
  TinyRuns runs;
  fs::create_directories(runs / "out");
  {
    RunLock lock("job.dump_folder", runs / "out");
    char host[256] = {};
    REQUIRE(::gethostname(host, sizeof host - 1) == 0);
    CHECK_THAT(runs.train("", 1),
               Contains(fmt::format("out is in use by process {} on {} since 20", ::getpid(), host)));
    CHECK_FALSE(fs::exists(runs / "out/metrics.jsonl"));
  }
  {  // A signal that interrupts the lock leaves no run without one.
    interruptions = 2;
    RunLock lock("job.dump_folder", runs / "out");
    CHECK(interruptions == 0);
    CHECK_THAT(runs.train("", 1), Contains("out is in use by process"));
  }
  // One that is killed leaves its name behind, and no lock.
  const Outcome killed = runs.run("train tiny.yaml --training.steps 1000000", [&](int group) {
    CHECK(wait_until(200, [&] { return fs::exists(runs / "out/checkpoint/step-2"); }));
    ::kill(-group, SIGKILL);
  });
  CHECK(killed.exit_code != 0);
  CHECK_THAT(read_file(runs / "out/.lock"), Contains(" since 20"));
  CHECK_THAT(runs.train("--training.steps 1", 0), Contains("There is nothing to train"));
}

TEST_CASE("a folder of checkpoints outside of the dump folder belongs to one run at a time, too") {
  TinyRuns runs;
  fs::create_directories(runs / "elsewhere");
  const std::string there = "--checkpoint.folder " + (runs / "elsewhere") + " ";
  {
    RunLock lock("checkpoint.folder", runs / "elsewhere");
    CHECK_THAT(runs.train(there, 1), Contains("[checkpoint.folder] ") &&
                                         Contains("elsewhere is in use by process") &&
                                         Contains("or choose another checkpoint.folder"));
    CHECK_THAT(runs.train(there + "--checkpoint.load_only true"), Contains("Training completed"));
  }
  runs.train("");
  {  // That of another run, in its dump folder, too.
    RunLock lock("checkpoint.folder", runs / "out/checkpoint");
    CHECK_THAT(runs.train("--job.dump_folder two --checkpoint.folder ../out/checkpoint", 1),
               Contains("out/checkpoint is in use by process"));
    CHECK_THAT(runs.train("", 1), Contains("out/checkpoint is in use by process"));
  }
  CHECK_THAT(runs.train("--job.dump_folder three --checkpoint.folder ."), Contains("Saved three/"));
  CHECK_THAT(runs.train(there), Contains("elsewhere/step-6"));
}

TEST_CASE("a dump folder that a process of another machine has is waited for, but not one of this machine") {
  const TinyRuns runs;
  const std::string out = runs / "out", log = runs / "log";
  fs::create_directories(out);
  const auto held_by = [&](const std::string& host) {
    std::ofstream(out + "/.lock") << "process 7 on " << host << " since 2026-01-01 00:00:00";
    Descriptor file(::open((out + "/.lock").c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(::flock(file, LOCK_EX | LOCK_NB) == 0);
    return file;
  };
  {
    Descriptor gone = held_by("node-17");
    const RunLock lock("job.dump_folder", out, {.seconds = 1e6, .is_over = [&] {
                                                  gone.close();
                                                  return false;
                                                }});
    CHECK_THAT(read_file(out + "/.lock"), Contains(fmt::format("process {} on ", ::getpid())));
  }
  {  // Here the process would have taken its lock with it.
    const Descriptor here = held_by(host_name());
    CHECK_THROWS_WITH(RunLock("job.dump_folder", out, {.seconds = 1e6}),
                      Contains("out is in use by process 7 on"));
  }
  const Descriptor there = held_by("node-17");
  const auto names_it =
      Contains("out is in use by process 7 on node-17 since 2026-01-01 00:00:00, and two runs");
  CHECK_THROWS_WITH(RunLock("job.dump_folder", out, {.seconds = 0.1}), names_it);
  // A run says that it waits, and a signal ends that.
  const Outcome stopped = runs.run("train tiny.yaml > log 2>&1", [&](int group) {
    CHECK(wait_until(200, [&] {
      return fs::exists(log) && contains_text(read_file(log), "if that machine is gone, its lock goes too");
    }));
    ::kill(group, SIGTERM);
  });
  CHECK(stopped.exit_code == 1);
  CHECK_THAT(read_file(log), names_it);
}

TEST_CASE("a run whose folder is moved, deleted or replaced says so when it saves") {
  const TinyRuns runs;
  const std::string out = runs / "out", log = runs / "log";
  constexpr auto kText = "out is not the folder that this run locked";
  const auto stopped_after = [&](const std::function<void()>& change) {
    fs::remove_all(out);
    fs::remove(log);
    const std::string endless = "--training.steps 1000000 --checkpoint.interval 1000000";
    const Outcome run = runs.run("train tiny.yaml " + endless + " > log 2>&1", [&](int group) {
      CHECK(wait_until(200, [&] { return fs::exists(log) && contains_text(read_file(log), "step:  2 "); }));
      change();
      ::kill(group, SIGTERM);
    });
    CHECK(run.exit_code == 0);
    std::string text = read_file(log);
    CHECK_THAT(text, Contains("Saved out/checkpoint/step-"));
    return text;
  };
  CHECK_THAT(stopped_after([] {}), !Contains("is not the folder"));
  CHECK_THAT(stopped_after([&] { fs::rename(out, runs / "gone"); }), Contains(kText));
  CHECK_THAT(stopped_after([&] { fs::remove_all(out); }), Contains(kText));
  CHECK_THAT(stopped_after([&] {
               fs::rename(out, runs / "before");
               fs::create_directories(out);
               std::ofstream(out + "/.lock") << "of another run";
             }),
             Contains(kText));
  // Once, however many saves follow. A link to the folder as it was is the folder.
  fs::remove_all(out);
  fs::create_directories(out);
  RunLock lock("job.dump_folder", out);
  const auto said = [&] {
    const CapturedOutput captured;
    lock.warn_if_gone();
    return captured.text();
  };
  fs::rename(out, runs / "moved");
  fs::create_directory_symlink("moved", out);
  CHECK(said().empty());
  fs::remove(out);
  CHECK_THAT(said(), Contains(kText));
  CHECK(said().empty());
}
