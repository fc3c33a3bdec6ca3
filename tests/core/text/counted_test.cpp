#include "core/text/counted.h"

#include <cstddef>
#include <cstdint>

#include "tests/support/catch.h"

using ottava::counted;

TEST_CASE("one of a thing is singular, none and many are plural") {
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(size_t{2}, "more layer") == "2 more layers");
  CHECK(counted(int64_t{1}, "micro-batch", "micro-batches") == "1 micro-batch");
  CHECK(counted(int64_t{4096}, "micro-batch", "micro-batches") == "4096 micro-batches");
}
