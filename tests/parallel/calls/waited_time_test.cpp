#include "parallel/calls/waited_time.h"

#include "tests/support/catch.h"

using namespace ottava;
using namespace std::chrono_literals;

TEST_CASE("time between two looks counts for a second at most") {
  const WaitedTime::Clock::time_point begin{};
  WaitedTime time(begin);
  CHECK(time.seconds(begin + 250ms) == 0.25);
  CHECK(time.seconds(begin + 750ms) == 0.75);
  CHECK(time.seconds(begin + 3600s) == 1.75);  // the process was stopped
  CHECK(time.seconds(begin + 3600s + 500ms) == 2.25);
  time.restart(begin + 4000s);
  CHECK(time.seconds(begin + 4000s) == 0);
  WaitedTime rare(begin, 10s);
  CHECK(rare.seconds(begin + 9s) == 9);
  rare.restart(begin + 100s);
  CHECK(rare.seconds(begin + 200s) == 10);
}

TEST_CASE("a wait for a condition ends when it holds, and otherwise after the time given") {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(wait_for(changed, lock, 0.6, [] { return false; }));
  CHECK(std::chrono::steady_clock::now() - begin >= 600ms);
  CHECK(wait_for(changed, lock, 3600, [] { return true; }));
  CHECK(wait_for(changed, lock, 0, [] { return true; }));
}
