#include "apps/decide/memory_need.h"

#include <vector>

#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("a step fits if it fits on every rank, and all ranks look at the same one") {
  // Of the first more is left free, but it may not be filled.
  const MemoryNeed large{.bytes = 90, .available = 100}, small{.bytes = 1, .available = 10};
  CHECK_FALSE(large.fits());
  CHECK(small.fits());
  for (const std::vector<MemoryNeed>& needs : {std::vector{small, large}, std::vector{large, small}}) {
    CHECK(tightest(needs).bytes == 90);
    CHECK_FALSE(tightest(needs).fits());
  }
  const MemoryNeed on_gpu{.bytes = 95, .available = 100, .share = 1};
  CHECK(on_gpu.fits());
  CHECK(tightest(std::vector{MemoryNeed{.bytes = 9, .available = 20, .share = 1}, on_gpu}).bytes == 95);
  // Equally tight: the reasons of decisions name the figures.
  const MemoryNeed one{.bytes = 70, .available = 100}, other{.bytes = 150, .available = 200};
  REQUIRE(one.spare() == other.spare());
  CHECK(tightest(std::vector{one, other}).bytes == 70);
  CHECK(tightest(std::vector{other, one}).bytes == 150);
}
