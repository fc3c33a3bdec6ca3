#include "core/threads/background_work.h"

#include <atomic>
#include <string>
#include <thread>

#include "core/log.h"
#include "core/threads/start_thread.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/no_threads.h"

using namespace ottava;
using Catch::Matchers::Contains;

TEST_CASE("background work is done by another thread, a piece at a time, before its owner is gone") {
  std::atomic<bool> may_end = false;
  std::atomic<int> done = 0;
  std::thread::id first;
  {
    BackgroundWork work("the work");
    work.start([&] {
      first = std::this_thread::get_id();
      while (!may_end) std::this_thread::yield();
      ++done;
    });
    CHECK(work.is_busy());
    CHECK(done == 0);
    may_end = true;
    work.start([&] { ++done; });
    CHECK(done >= 1);
  }
  CHECK(done == 2);
  CHECK(first != std::this_thread::get_id());
}

TEST_CASE("where no thread can be started, background work is done at once, with one warning") {
  std::string said;
  int done = 0;
  {
    const test::NoThreads no_threads;
    BackgroundWork work("the trace");
    const CapturedOutput captured;
    work.start([&] { ++done; });
    CHECK(done == 1);
    CHECK_FALSE(work.is_busy());
    work.start([&] { ++done; });
    said = captured.text();
  }
  CHECK(done == 2);
  const std::string warning =
      "training waits for the trace, because no thread can be started: Resource temporarily unavailable";
  const size_t at = said.find(warning);
  REQUIRE(at != std::string::npos);
  CHECK(said.find(warning, at + 1) == std::string::npos);
}

TEST_CASE("a thread that is needed and cannot be started is an error that says what it is for") {
  const auto nothing = [] {};
  {
    const test::NoThreads no_threads;
    CHECK_THROWS_WITH(
        start_thread("signals", "takes stop signals", nothing),
        Contains("[signals] cannot start the thread that takes stop signals: Resource temporarily "
                 "unavailable; end other processes") &&
            Contains("or of address space (ulimit -v)"));
  }
  start_thread("signals", "takes stop signals", nothing).join();
}
