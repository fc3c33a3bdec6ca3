#include "apps/decide/core_waits.h"

#include <time.h>

#include <fstream>
#include <numeric>
#include <vector>

#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

double clock_seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_without_core_of_this_thread() {
  // Nanoseconds on a core, nanoseconds on the list of those that are ready, how often it got a core. All are
  // 0 where Linux was not told to count them (delayacct).
  std::ifstream statistics("/proc/thread-self/schedstat");
  double computed = 0, waited = 0;
  if (statistics >> computed >> waited && computed > 0) return 1e-9 * waited;
  return clock_seconds(CLOCK_MONOTONIC) - clock_seconds(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace

double seconds_without_core() {
  std::vector<double> seconds(parallel_threads());
  parallel_for_index(std::ssize(seconds), 1,
                     [&](int64_t thread) { seconds[thread] = seconds_without_core_of_this_thread(); });
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

}  // namespace ottava
