#include "apps/decide/workbench.h"

#include <chrono>
#include <string>
#include <thread>

#include "tests/support/catch.h"

// What is compared is measured by turns.

using namespace ottava;

TEST_CASE("two kinds of work are timed by turns, so that a slow beginning decides nothing") {
  using std::chrono::milliseconds;
  std::string calls;
  Stream stream = Stream::cpu();
  // The first is slow for as long as its measurement alone used to take.
  const auto [first, second] = best_milliseconds_by_turns(
      stream,
      [&] {
        calls += 'a';
        if (calls.size() <= 16) std::this_thread::sleep_for(milliseconds(8));
      },
      [&] {
        calls += 'b';
        std::this_thread::sleep_for(milliseconds(4));
      });
  CHECK(first < second);
  CHECK(calls.substr(0, 6) == "ababab");
  CHECK(calls.size() % 2 == 0);
}
