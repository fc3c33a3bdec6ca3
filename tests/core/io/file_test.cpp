#include "core/io/file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/buffer.h"
#include "core/error.h"
#include "core/io/atomic_file.h"
#include "core/io/folder.h"
#include "core/io/gzip.h"
#include "core/io/output_file.h"
#include "core/io/system_failure.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/temporary_folder.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

TEST_CASE("files: reads and writes at offsets") {
  TemporaryFolder folder;
  File file = File::create(folder / "a");
  file.reserve(10);
  CHECK(file.size() == 10);
  file.write_at("xyz", 3, 5);
  file.sync();
  char text[3];
  CHECK_THROWS_WITH(file.read_at(text, 3, 5), Contains("cannot read"));  // and no page for the sake of a part
  const File reader = File::open_for_reading(folder / "a");
  reader.read_at(text, 3, 5);
  CHECK(std::string(text, 3) == "xyz");
  CHECK_THROWS_WITH(reader.read_at(text, 3, 8), Contains("it is truncated"));
  file.truncate(2);
  file.close();
  CHECK(read_file(folder / "a") == std::string(2, '\0'));
  CHECK_THROWS_WITH(read_file(folder / "a", 1), Contains("has 2 bytes, expected at most 1"));
  File::open_for_writing(folder / "a").write_at("q", 1, 0);
  CHECK(read_file(folder / "a")[0] == 'q');
}

TEST_CASE("files: what was written uncached is what is read, edges within blocks and pages included") {
  TemporaryFolder folder;
  constexpr int64_t kBytes = 30'000'000, kPiece = 700'001;
  const Buffer memory({DeviceType::cpu, 0}, kBytes + File::kBlock);
  for (const int64_t shift : {int64_t{0}, int64_t{1000}}) {  // blocks as they are; through the page cache
    char* text = static_cast<char*>(memory.data()) + shift;
    for (int64_t i = 0; i < kBytes; ++i) text[i] = static_cast<char>(i * 31 % 251);
    File file = File::create(folder / "a");
    file.reserve(kBytes);
    for (int64_t at = 0; at < kBytes; at += kPiece)
      file.write_uncached(text + at, static_cast<size_t>(std::min(kPiece, kBytes - at)), at);
    file.write_uncached(text + 100, 50, 100);      // less than a block
    file.write_uncached(text + 8192, 8192, 8192);  // nothing but blocks
    file.write_at("after", 5, 3);                  // as before
    file.sync();
    std::string expected(text, kBytes);
    expected.replace(3, 5, "after");
    CHECK(read_file(folder / "a") == expected);
  }
}

TEST_CASE("files: a device that is full is an error of writing uncached, for blocks too") {
  TemporaryFolder folder;
  const Buffer memory({DeviceType::cpu, 0}, 3 * File::kBlock);
  for (const int64_t shift : {int64_t{0}, int64_t{1000}}) {
    const int status = test::in_child([&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{File::kBlock, File::kBlock};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      File::create(folder / "a")
          .write_uncached(static_cast<char*>(memory.data()) + shift, 2 * File::kBlock, 0);
    });
    CHECK(WEXITSTATUS(status) == test::kThrewFileError);
  }
}

TEST_CASE("files: a process that may open no more of them is told what to raise") {
  TemporaryFolder folder;
  write_file_atomically(folder / "a", "x");
  const int status = test::in_child([&] {
    const rlimit none{3, 3};  // the standard streams
    ::setrlimit(RLIMIT_NOFILE, &none);
    for (int descriptor = 3; descriptor < 64; ++descriptor) ::close(descriptor);
    try {
      File::open_for_reading(folder / "a");
    } catch (const IoError& error) {
      if (std::string_view(error.what()).ends_with("a: Too many open files: raise ulimit -n")) ::_exit(1);
    }
  });
  CHECK(WEXITSTATUS(status) == 1);
}

TEST_CASE("files: what cannot be opened is named with the reason") {
  TemporaryFolder folder;
  CHECK_THROWS_WITH(File::open_for_reading(folder / "none"), Contains("none: No such file"));
  CHECK_THROWS_WITH(File::open_for_reading(folder.path()), Contains("is not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(File::open_for_reading(folder / "pipe"), Contains("pipe is not a regular file"));
  CHECK_THROWS_WITH(File::open_for_writing(folder / "none"), Contains("cannot open for writing"));
  CHECK_THROWS_WITH(File::create(folder / "no/file"), Contains("cannot create"));
  CHECK_THROWS_WITH(sync_folder(folder / "no"), Contains("cannot open the folder"));
}

TEST_CASE("atomic files: replaced as a whole, nothing left behind") {
  TemporaryFolder folder;
  write_file_atomically(folder / "a", "one");
  write_file_atomically(folder / "a", "two!");
  CHECK(read_file(folder / "a") == "two!");
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  fs::create_directory(folder / "dir");
  fs::create_directory(folder / "dir/inside");
  CHECK_THROWS_WITH(write_file_atomically(folder / "dir", "x"), Contains("dir: it is a folder"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 2);
}

TEST_CASE("atomic files: a write that fails leaves the old content, also of files beside it") {
  TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  const int status = test::in_child([&] {
    std::signal(SIGXFSZ,
                SIG_IGN);  // past the limit write fails with EFBIG, as it would with ENOSPC on a full disk
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string large(5000, 'x');
    const FileToWrite files[] = {{folder / "a", "new"}, {folder / "b", large}};
    write_files_atomically(files);
  });
  CHECK(WEXITSTATUS(status) == test::kThrewFileError);
  CHECK(read_file(folder / "a") == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("output files: a link and what it leads to stay, and a pipe gets what it is told") {
  TemporaryFolder folder;
  write_output_file(folder / "plain", "one");
  write_output_file(folder / "plain", "two");
  CHECK(read_file(folder / "plain") == "two");

  fs::create_directory(folder / "dir");
  fs::create_symlink("dir/target", folder / "link");
  fs::create_symlink(folder / "link", folder / "second");
  write_output_file(folder / "second", "made");  // the target was not there
  write_output_file(folder / "second", "replaced");
  CHECK(read_file(folder / "dir/target") == "replaced");
  CHECK(fs::is_symlink(folder / "second"));
  CHECK(fs::is_symlink(folder / "link"));
  fs::create_symlink("round", folder / "round");
  CHECK_THROWS_WITH(write_output_file(folder / "round", "x"), Contains("cannot write " + (folder / "round")));

  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const std::string content(200000, 'x');  // more than a pipe holds
  std::string got;
  std::thread reader([&] {
    std::ifstream in(folder / "pipe");
    got.assign(std::istreambuf_iterator<char>(in), {});
  });
  write_output_file(folder / "pipe", content);
  reader.join();
  CHECK(got == content);
  CHECK(fs::is_fifo(folder / "pipe"));

  CHECK_THROWS_WITH(write_output_file(folder / "dir", "x"), Contains("dir: Is a directory"));
  CHECK_THROWS_WITH(write_output_file(folder / "no/file", "x"), Contains("no/file"));

  for (const char* name : {"plain", "link", "pipe", "new"}) CHECK_NOTHROW(require_writable(folder / name));
  CHECK_THROWS_WITH(require_writable(folder / "no/file"), Contains("no/file: No such file or directory"));
  CHECK_THROWS_WITH(require_writable(folder / "plain/file"), Contains("plain/file: Not a directory"));
  CHECK_THROWS_WITH(require_writable(folder / "dir"), Contains("dir: Is a directory"));
  CHECK_THROWS_WITH(require_writable(folder / "round"), Contains("cannot write " + (folder / "round")));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 6);
}

TEST_CASE("output lines: a file is begun anew, also behind a link, and each line is there once it is made") {
  TemporaryFolder folder;
  write_output_file(folder / "file", "before\n");
  fs::create_symlink("file", folder / "link");
  OutputLines lines(folder / "link");
  CHECK(read_file(folder / "file").empty());
  for (const char* expected : {"one\n", "one\ntwo\n"}) {
    lines.append(std::string(expected).ends_with("two\n") ? "two" : "one");
    CHECK(read_file(folder / "file") == expected);
  }
  CHECK(fs::is_symlink(folder / "link"));
  OutputLines(folder / "new").append("one");
  CHECK(read_file(folder / "new") == "one\n");
  CHECK_THROWS_WITH(OutputLines(folder / "no/file"), Contains("no/file: No such file or directory"));
  CHECK_THROWS_WITH(OutputLines("/dev/full").append("one"),
                    Contains("cannot write /dev/full: No space left on device"));
}

TEST_CASE("atomic files: what killed processes left is removed, what another may be writing stays") {
  TemporaryFolder folder;
  const std::string old = folder / "rank_0.json.tmp0123456789abcdef";
  const std::vector<std::string> others = {folder / "rank_0.json.tmpfedcba9876543210",  // written to just now
                                           folder / "rank_0.json",
                                           folder / "a.tmp",
                                           folder / ".tmp0123456789abcdef",
                                           folder / "a.tmp0123456789abcdeg",
                                           folder / "a_tmp0123456789abcdef"};
  const auto an_hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  write_file_synced(old, "{");
  fs::last_write_time(old, an_hour_ago);
  for (const std::string& other : others) {
    write_file_synced(other, "");
    if (other != others[0]) fs::last_write_time(other, an_hour_ago);
  }
  fs::create_directory(folder / "b.tmp0123456789abcdef");
  fs::last_write_time(folder / "b.tmp0123456789abcdef", an_hour_ago);
  CHECK(remove_half_written(folder.path()) == std::vector<std::string>{old});
  CHECK_FALSE(fs::exists(old));
  CHECK(std::ranges::all_of(others, [](const std::string& path) { return fs::exists(path); }));
  CHECK(fs::exists(folder / "b.tmp0123456789abcdef"));
  CHECK(remove_half_written(folder / "none").empty());
}

TEST_CASE("atomic files: a process that is killed while it writes leaves what is removed later") {
  TemporaryFolder folder;
  const int status = test::in_child([&] {
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);  // SIGXFSZ kills it
    write_file_atomically(folder / "a", std::string(5000, 'x'));
  });
  REQUIRE(WIFSIGNALED(status));
  const std::vector<std::string> left = names_in(folder.path());
  REQUIRE(left.size() == 1);
  fs::last_write_time(folder / left[0], fs::file_time_type::clock::now() - std::chrono::hours(1));
  CHECK(remove_half_written(folder.path()).size() == 1);
  CHECK(names_in(folder.path()).empty());
}

TEST_CASE("gzip refuses what zlib cannot count") {
  const std::string text = "x";
  const std::string_view long_text(text.data(), size_t{4} << 30);  // refused before it is read
  CHECK_THROWS_WITH(gzip(long_text, "a.gz"),
                    Catch::Contains("[a.gz] 4294967296 bytes are too many to compress at once"));
}

}  // namespace
}  // namespace ottava
