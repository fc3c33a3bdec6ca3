#include "apps/decide/core_waits.h"

#include <time.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "core/stopwatch.h"
#include "core/threads/allowed_cpus.h"
#include "core/threads/parallel_for.h"
#include "core/threads/threads_for.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr double kSeconds = 0.08;

void compute_for(double seconds) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  for (const double begin = now(); now() < begin + seconds;) {
  }
}

/// How long two threads waited for a core, together, and the time in which they did.
struct Waited {
  double waits, took;
};
Waited during(const std::function<void(int64_t)>& body) {
  const Stopwatch watch;
  const double before = seconds_without_core();
  parallel_for_index(2, 1, body);
  const double waits = seconds_without_core() - before;
  return {waits, watch.seconds()};
}

}  // namespace

TEST_CASE("threads that share a core wait for it; those that wait for a slower one do not") {
  double on_core = 0;
  if (!(std::ifstream("/proc/thread-self/schedstat") >> on_core && on_core > 0))
    return skip("this Linux keeps no schedstat");
  const ThreadsFor two(2);
  if (parallel_threads() != 2) return skip("loops have one thread here");
  // The first has nothing to do for most of the time that the second takes.
  const Waited unequal = during([](int64_t thread) {
    if (thread == 0) return std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    compute_for(kSeconds);
  });
  // Of the two threads' time one slept and the other computed for so long.
  CHECK(unequal.waits <= 2 * unequal.took - 2 * kSeconds + 1e-3);

  const std::vector<int> before = allowed_cpus();
  REQUIRE_FALSE(before.empty());
  const auto stay_on = [](const std::vector<int>& cpus) {
    parallel_for_index(2, 1, [&](int64_t) { allow_cpus(cpus); });
  };
  stay_on({before.front()});
  const Waited shared = during([](int64_t) { compute_for(kSeconds); });
  stay_on(before);
  CHECK(shared.took >= 1.5 * kSeconds);
  CHECK(shared.waits >= 0.5 * kSeconds);
}
