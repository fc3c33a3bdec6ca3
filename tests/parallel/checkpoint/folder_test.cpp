#include "parallel/checkpoint/folder.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <new>
#include <thread>

#include "core/io/atomic_file.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/system_failure.h"
#include "parallel/checkpoint/saver.h"
#include "tests/parallel/checkpoint/tiny_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace {
std::vector<std::string> flushed, flushed_by_waiting;  // paths; the latter by the thread that makes steps
std::thread::id waiting;
std::atomic<int> writes = 0;
std::atomic<bool> is_removal_held = false, is_naming_held = false;
std::atomic<int> held_removals = 0, held_namings = 0;
std::mutex flushed_mutex;
std::string unflushable;  // a path
std::string immovable;    // a path
int why_immovable = EBUSY;
}  // namespace

// The C library's, in this program.
extern "C" int fsync(int descriptor) {
  std::error_code none;
  const std::string path =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), none).string();
  if (is_naming_held && path.ends_with("/manifest.json"))
    for (++held_namings; is_naming_held;) std::this_thread::yield();
  const std::lock_guard lock(flushed_mutex);
  flushed.push_back(path);
  if (std::this_thread::get_id() == waiting) flushed_by_waiting.push_back(path);
  if (!unflushable.empty() && path.ends_with(unflushable)) return errno = EIO, -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

extern "C" ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t at) {
  ++writes;
  return ::syscall(SYS_pwrite64, descriptor, from, bytes, at);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (is_removal_held && std::string_view(to).ends_with(".deleted") && std::this_thread::get_id() != waiting)
    for (++held_removals; is_removal_held;) std::this_thread::yield();
  if (from != immovable) return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  errno = why_immovable;
  return -1;
}

namespace ottava::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

TEST_CASE("steps are listed by number") {
  TemporaryFolder folder;
  for (const char* name : {"step-10", "step-9", "step-100", "step-x", "step-", "step-5.tmp", "step--3",
                           "other", "step-7.deleted"}) {
    fs::create_directory(folder / name);
  }
  std::vector<SavedStep> steps = list_steps(folder.path());
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].step == 9);
  CHECK(steps[2].path == folder / "step-100");
  CHECK(list_steps(folder / "none").empty());
}

TEST_CASE("an unfinished save that cannot be moved away is said to block the next") {
  TemporaryFolder folder;
  immovable = folder / "step-7.tmp";
  fs::create_directory(immovable);
  CHECK_THROWS_WITH(remove_leftovers(folder.path()),
                    Contains("[checkpoint] " + immovable + " blocks the next save: move it away; ") &&
                        Contains("Device or resource busy"));
  CHECK(fs::exists(immovable));
  why_immovable = EIO;
  CHECK_THROWS_AS(remove_leftovers(folder.path()), IoError);  // a save that meets it is tried again
  why_immovable = ENOSPC;
  CHECK_THROWS_AS(remove_leftovers(folder.path()), FullDisk);  // and this one is left out
  why_immovable = ENOENT;
  CHECK_THROWS_AS(remove_leftovers(folder.path()), Missing);  // and so is one whose folder was moved away
  why_immovable = EBUSY;
  immovable.clear();
  remove_leftovers(folder.path());
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("whoever makes a run's folders flushes those in which they lie") {
  const std::vector<std::function<void(const std::string&)>> makers{
      [](const std::string& path) {
        PatientRanks group;
        check_shared_folder(path, group);
      },
      [](const std::string& path) {
        PatientRanks group;
        TinyRank rank(tiny_model());
        CheckpointSaver({.folder = path}, group).save(checkpoint_of(rank, 1));
      },
      [](const std::string& path) { CHECK(make_writable_folder(path).empty()); }};
  for (const auto& make : makers) {
    TemporaryFolder folder;
    const std::string here = fs::canonical(folder.path()).string();
    fs::create_directory(folder / "old");
    flushed.clear();
    make(folder / "old/run/checkpoint");
    for (const char* name : {"/old", "/old/run"}) CHECK(std::ranges::count(flushed, here + name) == 1);
    CHECK(std::ranges::count(flushed, here) == 0);
    flushed.clear();
    make(folder / "old/run/checkpoint");
    CHECK(std::ranges::count(flushed, here + "/old/run") == 0);
  }
}

TEST_CASE("beside the steps: a save's files are flushed and old ones removed while training goes on") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  CheckpointSaver saver({.folder = folder.path(), .keep_latest_k = 2}, group);
  for (int64_t step : {1, 2}) saver.save(checkpoint_of(rank, step));
  const auto flushed_weights = [](const std::vector<std::string>& paths) {
    return std::ranges::count_if(paths,
                                 [](const std::string& path) { return path.ends_with(".safetensors"); });
  };
  waiting = std::this_thread::get_id();
  flushed.clear(), flushed_by_waiting.clear();
  writes = 0;
  saver.begin(checkpoint_of(rank, 3));
  const size_t flushed_to_begin = flushed_by_waiting.size();
  is_removal_held = true;
  while (!saver.poll()) std::this_thread::yield();
  const bool was_there = fs::exists(folder / "step-1"), is_saved = fs::exists(folder / "step-3");
  while (was_there && held_removals == 0) std::this_thread::yield();
  is_removal_held = false;
  saver.finish();
  waiting = {};
  CHECK(was_there);
  CHECK(is_saved);
  CHECK(held_removals == 1);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"step-2", "step-3"});
  CHECK(flushed_weights(flushed) == 2);
  CHECK(flushed_weights(flushed_by_waiting) == 0);
  CHECK(flushed_by_waiting.size() == flushed_to_begin);
  CHECK(writes > 0);
  CHECK(writes < 3 * 14);  // tensors, which lie one behind the other
}

TEST_CASE("beside the steps: a checkpoint gets its name while training goes on") {
  TemporaryFolder folder;
  std::atomic<int> as_expected = 0, saved = 0;
  std::string text;
  is_naming_held = true;
  run_ranks({2, 1, 1}, [&](PatientRanks& group, ShardCoordinates at) {
    TinyRank rank(tiny_model(), at);
    rank.fill(1);
    CheckpointSaver saver({.folder = folder.path(), .on_saved = [&](int64_t) { ++saved; }}, group);
    saver.begin(checkpoint_of(rank, 1));
    rank.clear();
    const auto rank_0_is_held = [&] { return group.of_rank_0(held_namings > 0 ? "held" : "") == "held"; };
    while (!rank_0_is_held()) as_expected -= saver.poll();
    for (int step = 0; step < 3; ++step) as_expected += !saver.poll() && saver.in_flight();
    as_expected += saved == 0 && !fs::exists(folder / "step-1");
    if (group.rank() == 0) {
      std::thread waits_for_the_name([&] { text = saver.left_text("why"); });
      is_naming_held = false;
      waits_for_the_name.join();
    }
    while (!saver.poll()) std::this_thread::yield();
    as_expected += fs::exists(folder / "step-1");
  });
  CHECK(as_expected == 2 * (3 + 1 + 1));
  CHECK(saved == 2);
  CHECK(text == "the checkpoint of step 1 is complete");
  PatientRanks alone;
  TinyRank whole(tiny_model());
  load_checkpoint(folder / "step-1", whole.parameters, alone);
  CHECK(whole.wrong(1) == 0);
}

TEST_CASE("who leaves a save whose naming fails is told why") {
  TemporaryFolder folder;
  PatientRanks group;
  TinyRank rank(tiny_model());
  rank.fill(1);
  CheckpointSaver saver({.folder = folder.path()}, group);
  unflushable = "/step-1.tmp";
  held_namings = 0;
  is_naming_held = true;
  saver.begin(checkpoint_of(rank, 1));
  while (held_namings == 0) saver.poll();
  std::string text;
  std::thread waits_for_the_name([&] { text = saver.left_text("why"); });
  is_naming_held = false;
  waits_for_the_name.join();
  CHECK_THAT(text, Contains("of step 1 was being written and stays unfinished ([") &&
                       Contains("/step-1.tmp: Input/output error): there is no complete checkpoint"));
  CHECK_THROWS_AS(saver.finish(), IoError);
  unflushable.clear();
}

TEST_CASE("a checkpoint that cannot be given its name fails on all ranks, and the next one is made") {
  TemporaryFolder folder;
  std::vector<std::string> messages(2);
  for (const bool in_background : {false, true}) {
    run_ranks({2, 1, 1}, [&](PatientRanks& group, ShardCoordinates at) {
      TinyRank rank(tiny_model(), at);
      rank.fill(2);
      CheckpointSaver saver({.folder = folder.path()}, group);
      if (group.rank() == 0) unflushable = "/step-1.tmp";
      group.require_equal("flush", 0);
      messages[group.rank()] = message_of<IoError>([&] {
        if (!in_background) return saver.save(checkpoint_of(rank, 1));
        saver.begin(checkpoint_of(rank, 1));
        while (!saver.poll()) std::this_thread::yield();
      });
      if (group.rank() == 0) unflushable.clear();
      group.require_equal("flush", 0);
      saver.save(checkpoint_of(rank, 2));
    });
    CHECK_THAT(messages[0], Contains("/step-1.tmp"));
    CHECK(messages[0] == messages[1]);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step-2"});
  }
}

TEST_CASE("whoever has made a checkpoint's files flushes them, also where it has nothing to write there") {
  TemporaryFolder folder;
  TinyRank rank(tiny_model());
  const Layout layout = plan_layout(rank.parameters.specs, layout_options_of(rank.parameters));
  create_files(layout, folder.path());
  flushed.clear();
  write_shards({.layout = &layout, .folder = folder.path()});
  CHECK(flushed.empty());
  write_shards({.layout = &layout, .folder = folder.path(), .flushes_all = true});
  CHECK(flushed.size() == layout.files.size());
}

TEST_CASE("what a job that died left of looking for its ranks is removed at the next start") {
  TemporaryFolder folder;
  write_file_synced(folder / ".visible-0123456789abcdef", "0123456789abcdef");
  write_file_synced(folder / ".lock", "");
  remove_leftovers(folder.path());
  CHECK(names_in(folder.path()) == std::vector<std::string>{".lock"});
}

TEST_CASE("a file system that does not answer is named, not taken for a step that is there or is not") {
  TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");
  const auto says = [&](const std::string& what) {
    return Catch::Matchers::Equals("[file] cannot " + what + ": Too many levels of symbolic links");
  };
  CHECK_THROWS_WITH(commit_step(folder / "loop", 3), says("look at " + folder / "loop/step-3"));
  CHECK_THROWS_WITH(is_complete({3, folder / "loop/step-3"}),
                    says("look at " + folder / "loop/step-3/manifest.json"));
  CHECK_THROWS_WITH(remove_leftovers(folder / "loop"), says("list " + folder / "loop"));
}

TEST_CASE("a shared folder is seen by all ranks; one rank that fails stops all with its words") {
  TemporaryFolder folder;
  std::vector<std::string> texts, uneven, silence, messages(3), refusals(3), others(3), away(3), full(3),
      full_too(3), denied(3), denied_too(3), gone(3), gone_too(3);
  std::vector<uint64_t> sums;
  run_ranks({1, 3, 1}, [&](PatientRanks& group, ShardCoordinates) {
    check_shared_folder(folder / "new/checkpoints", group);
    auto rank = static_cast<size_t>(group.rank());
    std::vector<std::string> gathered = group.all_gather(fmt::format("r{}", rank));
    std::vector<std::string> of_lengths = group.all_gather(std::string(3 * rank, 'x')),
                             of_none = group.all_gather("");
    std::vector<uint64_t> summed = {~uint64_t{0}, 1, uint64_t{1} << 63};
    group.sum(summed);
    if (rank == 2) texts = gathered, uneven = of_lengths, silence = of_none, sums = summed;
    messages[rank] = file_error_of([&] {
      group.together([&] {
        if (rank > 0) fail<FileError>("x", "rank {} is unwell", rank);
      });
    });
    refusals[rank] = config_error_of([&] {
      group.together([&] {
        if (rank == 2) fail<ConfigError>("x", "no");
      });
    });
    others[rank] = message_of<Error>([&] { group.on_rank_0([] { throw std::bad_alloc(); }); });
    away[rank] = message_of<IoError>([&] {
      group.together([&] {
        if (rank == 1) throw fs::filesystem_error("", "f", {ESTALE, std::generic_category()});
      });
    });
    full[rank] = message_of<FullDisk>([&] { group.on_rank_0([] { fail<FullDisk>("x", "no room"); }); });
    full_too[rank] = message_of<FullDisk>([&] {
      group.on_rank_0([] { throw fs::filesystem_error("", "f", {EDQUOT, std::generic_category()}); });
    });
    denied[rank] = message_of<NoAccess>([&] {
      group.together([&] {
        if (rank == 2) throw fs::filesystem_error("", "f", {EACCES, std::generic_category()});
      });
    });
    denied_too[rank] = message_of<NoAccess>([&] { group.on_rank_0([] { fail<NoAccess>("x", "closed"); }); });
    gone[rank] = message_of<Missing>([&] {
      group.together([&] {
        if (rank == 1) throw fs::filesystem_error("", "f", {ENOENT, std::generic_category()});
      });
    });
    gone_too[rank] = message_of<Missing>([&] { group.on_rank_0([] { fail<Missing>("x", "moved"); }); });
    group.together([] {});
  });
  CHECK(texts == std::vector<std::string>{"r0", "r1", "r2"});
  CHECK(uneven == std::vector<std::string>{"", "xxx", "xxxxxx"});
  CHECK(silence == std::vector<std::string>(3));
  CHECK(sums == std::vector<uint64_t>{~uint64_t{0} * 3, 3, (uint64_t{1} << 63) * 3});
  for (size_t rank : {0u, 1u, 2u}) {
    CHECK_THAT(messages[rank], Contains("rank 1: [x] rank 1 is unwell"));
    CHECK_THAT(refusals[rank], Contains("rank 2: [x] no"));
    CHECK_THAT(others[rank], Contains("rank 0: std::bad_alloc"));
    CHECK_THAT(away[rank], Contains("rank 1: [file] cannot use f: Stale file handle"));
    CHECK_THAT(full[rank], Contains("rank 0: [x] no room"));
    CHECK_THAT(denied[rank], Contains("rank 2: [file] cannot use f: Permission denied"));
    CHECK_THAT(denied_too[rank], Contains("rank 0: [x] closed"));
    CHECK_THAT(gone[rank], Contains("rank 1: [file] cannot use f: No such file or directory"));
    CHECK_THAT(gone_too[rank], Contains("rank 0: [x] moved"));
    CHECK_THAT(full_too[rank], Contains("rank 0: [file] cannot use f: Disk quota exceeded"));
  }
  CHECK(fs::is_empty(folder / "new/checkpoints"));
  PatientRanks group;
  write_file_atomically(folder / "file", "");
  CHECK_THROWS_WITH(check_shared_folder(folder / "file/x", group), Contains("cannot create"));
}

}  // namespace
}  // namespace ottava::checkpoint
