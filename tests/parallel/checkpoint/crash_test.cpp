// What a job that dies, or a disk that is full, leaves behind.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "core/io/atomic_file.h"
#include "parallel/checkpoint/loader.h"
#include "parallel/checkpoint/saver.h"
#include "parallel/checkpoint/verify.h"
#include "tests/parallel/checkpoint/tiny_checkpoint.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

void save_alone(const std::string& folder, int64_t step) {
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(step);
  CheckpointSaver({.folder = folder, .keep_latest_k = 2}, group).save(checkpoint_of(rank, step));
}

// The step that loads, all of whose values are those of that step.
int64_t load(const std::string& folder) {
  PatientRanks group;
  TinyRank rank(tiny_model());
  auto loaded = load_newest(folder, rank.parameters, group);
  if (!loaded) return -1;
  CHECK(rank.wrong(loaded->manifest.step) == 0);
  return loaded->manifest.step;
}

TEST_CASE("killed after any piece of a save: the checkpoint before loads, the next save succeeds") {
  TemporaryFolder folder;
  save_alone(folder.path(), 1);
  int64_t pieces = 0;
  for (bool was_killed = true; was_killed; ++pieces) {
    int status = test::in_child([&] {
      PatientRanks group;
      TinyRank rank(tiny_model());
      rank.fill(2);
      int64_t left = pieces;
      rank.parameters.copy = [&](void* to, const void* from, size_t bytes) {
        if (left-- == 0) ::raise(SIGKILL);
        std::copy_n(static_cast<const char*>(from), bytes, static_cast<char*>(to));
      };
      CheckpointSaver({.folder = folder.path()}, group).save(checkpoint_of(rank, 2));
    });
    was_killed = WIFSIGNALED(status);
    if (!was_killed) break;
    CHECK(fs::exists(folder / "step-2.tmp"));
    CHECK(load(folder.path()) == 1);
  }
  CHECK(pieces == 3 * 14);  // one piece per tensor
  CHECK(load(folder.path()) == 2);
  CHECK_FALSE(fs::exists(folder / "step-2.tmp"));
}

TEST_CASE("killed at any time, also while renaming and rotating: a whole checkpoint is there") {
  TemporaryFolder folder;
  auto start = std::chrono::steady_clock::now();
  save_alone(folder.path(), 1);
  auto one_save = std::chrono::steady_clock::now() - start;
  int64_t newest = 1;
  constexpr int kAttempts = 24;
  // More of them, each later, where the machine has become so busy that no child came to its end of a save.
  for (int attempt = 0; attempt < kAttempts || (newest == 1 && attempt < 40 * kAttempts); ++attempt) {
    const pid_t child = test::start_child([&] {
      for (int64_t step = newest + 1;; ++step) save_alone(folder.path(), step);
    });
    std::this_thread::sleep_for(one_save * 4 * attempt / kAttempts);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    int64_t loaded = load(folder.path());
    CHECK(loaded >= newest);
    newest = loaded;
  }
  CHECK(newest > 1);
}

TEST_CASE("a full disk leaves the last good checkpoint and gives the space back") {
  TemporaryFolder folder;
  save_alone(folder.path(), 1);
  // Past the limit of a file's size writing fails with EFBIG where a full disk says ENOSPC: in the header,
  // while space is reserved, and (in small files only) after all tensors are written.
  for (rlim_t limit : {rlim_t{100}, rlim_t{10000}, rlim_t{30000}}) {
    int status = test::in_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      rlimit r{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &r);
      save_alone(folder.path(), 2);
    });
    CHECK(WEXITSTATUS(status) == test::kThrewFileError);
    CHECK_FALSE(fs::exists(folder / "step-2.tmp"));
    CHECK(load(folder.path()) == 1);
  }
  save_alone(folder.path(), 2);
  CHECK(load(folder.path()) == 2);
}

TEST_CASE("a disk that fills up under the writer thread") {
  TemporaryFolder folder;
  save_alone(folder.path(), 1);
  int status = test::in_child([&] {
    PatientRanks group;
    TinyRank rank(tiny_model());
    rank.fill(2);
    CheckpointSaver saver({.folder = folder.path()}, group);
    Checkpoint checkpoint = checkpoint_of(rank, 2);
    checkpoint.texts = {{"large.txt", std::string(200000, 'x')}};
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit r{100000, 100000};
    ::setrlimit(RLIMIT_FSIZE, &r);
    saver.begin(checkpoint);
    saver.finish();
  });
  CHECK(WEXITSTATUS(status) == test::kThrewFileError);
  CHECK_FALSE(fs::exists(folder / "step-2.tmp"));
  CHECK(load(folder.path()) == 1);
}

TEST_CASE("what cannot be removed of a replaced or an old checkpoint is named and ends no save") {
  TemporaryFolder folder;
  // As a user whom the rights of a folder bind: a file in one without the right to write stays, as one that
  // is open stays on NFS.
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0) CHECK(::chown(folder.path().c_str(), kNobody, kNobody) == 0);
  const CapturedOutput log;
  int status = test::in_child([&] {
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) ::_exit(9);
    if (::eaccess(folder.path().c_str(), W_OK) != 0) ::_exit(9);
    const auto hold = [&](const std::string& step) {
      fs::create_directory(folder / (step + "/held"));
      write_file_atomically(folder / (step + "/held/file"), "");
      fs::permissions(folder / (step + "/held"), fs::perms::owner_read | fs::perms::owner_exec);
    };
    save_alone(folder.path(), 7);
    hold("step-7");
    save_alone(folder.path(), 7);
    hold("step-7");
    save_alone(folder.path(), 7);  // its leftovers are two
    save_alone(folder.path(), 8);
    hold("step-8");
    save_alone(folder.path(), 9);   // 7 goes
    save_alone(folder.path(), 10);  // 8 should
    // Of a job that died.
    fs::create_directory(folder / "step-11.tmp");
    hold("step-11.tmp");
    save_alone(folder.path(), 11);
    save_alone(folder.path(), 11);
  });
  if (WEXITSTATUS(status) == 9)
    return test::skip("a user whom rights bind cannot write into temporary folders");
  CHECK(WEXITSTATUS(status) == 0);
  for (const char* name : {"step-7.deleted", "step-7.deleted-2", "step-8.deleted", "step-11.deleted"}) {
    INFO(name);
    CHECK_THAT(log.text(), Contains(folder / name + " cannot be removed: Permission denied"));
    CHECK(fs::exists(folder / name + "/held/file"));
    fs::permissions(folder / name + "/held", fs::perms::owner_all);
  }
  CHECK(load(folder.path()) == 11);
  save_alone(folder.path(), 12);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 2);
}

TEST_CASE("whatever ends a save, its space is given back") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  rank.parameters.copy = [](void*, const void*, size_t) { throw std::runtime_error("the device is lost"); };
  CheckpointSaver saver({.folder = folder.path()}, group);
  for (const bool in_background : {false, true}) {
    CHECK_THROWS_WITH(
        in_background ? saver.begin(checkpoint_of(rank, 1)) : saver.save(checkpoint_of(rank, 1)),
        "the device is lost");
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("a rank that dies during a save stops the others; what was saved before loads") {
  TemporaryFolder folder;
  save_alone(folder.path(), 1);
  CHECK_THROWS_WITH(run_ranks({1, 3, 1},
                              [&](PatientRanks& group, ShardCoordinates at) {
                                TinyRank rank(tiny_model(), at);
                                rank.fill(2);
                                CheckpointSaver saver({.folder = folder.path()}, group);
                                saver.begin(checkpoint_of(rank, 2));
                                if (group.rank() == 1) throw std::runtime_error("killed");
                                saver.finish();
                              }),
                    Contains("killed"));
  CHECK_FALSE(fs::exists(folder / "step-2"));
  CHECK(load(folder.path()) == 1);
}

}  // namespace
}  // namespace ottava::checkpoint
