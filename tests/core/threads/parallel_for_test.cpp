#include "core/threads/parallel_for.h"

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/values.h"

using namespace ottava;

TEST_CASE("what the body of a parallel loop throws reaches the caller, from one thread or from all") {
  constexpr int64_t kCount = 8;
  test::for_each_thread_count([&](int threads) {
    INFO(threads << " threads");
    for (int64_t bad = 0; bad < kCount; ++bad) {
      const auto body = [&](int64_t i) {
        if (i == bad) throw std::runtime_error("index " + std::to_string(i));
      };
      const std::string message = "index " + std::to_string(bad);
      CHECK_THROWS_WITH(parallel_for_index(kCount, 1, body), message);
      CHECK_THROWS_WITH(parallel_for_each(kCount, body), message);
    }
    const auto always = [](auto...) { throw std::bad_alloc(); };
    CHECK_THROWS_AS(parallel_for(kCount, 1, always), std::bad_alloc);
    CHECK_THROWS_AS(parallel_for_each(kCount, always), std::bad_alloc);
    std::atomic<int64_t> covered = 0;  // the next loop is as if nothing had been
    parallel_for(kCount, 1, [&](int64_t begin, int64_t end) { covered += end - begin; });
    CHECK(covered == kCount);
  });
}
