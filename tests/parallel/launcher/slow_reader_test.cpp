#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "core/io/descriptor.h"
#include "core/io/file.h"
#include "tests/support/catch.h"
#include "tests/support/launched.h"
#include "tests/support/temporary_folder.h"

// A launcher whose lines are read slowly, or not at all.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

/// A pipe that a command writes into as &9: small, and one that fails where another would wait, or not.
class SmallPipe {
 public:
  enum class Kind { blocks, fails };
  explicit SmallPipe(Kind kind) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    from_ = Descriptor(ends[0]);
    const Descriptor to(ends[1]);
    REQUIRE(::dup2(to, kNumber) == kNumber);
    REQUIRE(::fcntl(kNumber, F_SETPIPE_SZ, 4096) >= 4096);
    if (kind == Kind::fails) REQUIRE(::fcntl(kNumber, F_SETFL, O_NONBLOCK) == 0);
  }
  ~SmallPipe() { ::close(kNumber); }
  /// What comes until there are so many lines, slowly.
  std::string read_lines(int64_t lines) {
    std::string text;
    char chunk[2048];
    for (ssize_t got; lines > 0 && (got = ::read(from_, chunk, sizeof chunk)) > 0;) {
      text.append(chunk, got);
      lines -= std::count(chunk, chunk + got, '\n');
      ::usleep(1000);
    }
    return text;
  }
  int waiting() const {
    int bytes = 0;
    ::ioctl(from_, FIONREAD, &bytes);
    return bytes;
  }

 private:
  static constexpr int kNumber = 9;
  Descriptor from_;
};

}  // namespace

TEST_CASE("a slow reader gets every line, whole, whether its pipe blocks or fails when it is full") {
  SmallPipe pipe(GENERATE(SmallPipe::Kind::blocks, SmallPipe::Kind::fails));
  std::string text;
  const Outcome o =
      run_command("exec " LAUNCH_PROGRAM " 2 -- /bin/sh -c 'seq -f \"line %g of $RANK\" 3000' >&9",
                  [&](int) { text = pipe.read_lines(6000); });
  CHECK(o.exit_code == 0);
  for (const char* rank : {"0", "1"}) {
    std::string own;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(std::string("[rank ") + rank)) own += line + "\n";
    std::string want;
    for (int i = 1; i <= 3000; ++i) want += fmt::format("[rank {}] line {} of {}\n", rank, i, rank);
    CHECK(own == want);
  }
}

TEST_CASE("a stop waits for ranks, and not for a reader that never reads") {
  const SmallPipe pipe(GENERATE(SmallPipe::Kind::blocks, SmallPipe::Kind::fails));
  const TemporaryFolder folder;
  // More than pipes hold: the ranks end when somebody takes it, or nobody is waited for.
  const Outcome o =
      run_command("exec " LAUNCH_PROGRAM " 2 --reader 0.2 --tee " + folder / "said" +
                      " -- /bin/sh -c 'trap \"\" TERM; seq 100000; echo done >&2; exit $RANK' >&9",
                  [&](int launcher) {
                    wait_until(200, [&] { return pipe.waiting() > 0; });
                    ::kill(launcher, SIGTERM);
                  });
  INFO(o.output);
  CHECK_FALSE(o.timed_out);
  CHECK(o.exit_code == 1);
  CHECK_THAT(o.output, Contains("[rank 0] done\n") && Contains("[rank 1] done\n") &&
                           Contains("rank 1: ended with code 1\n"));
  CHECK(pipe.waiting() > 0);
  for (const char* rank : {"0", "1"})
    CHECK_THAT(read_file(folder / (std::string("said/rank-") + rank + ".log")), Contains("\n100000\n"));
}
