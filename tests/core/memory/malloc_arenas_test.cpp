#include "core/memory/malloc_arenas.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/skip.h"

using namespace ottava;

namespace {

constexpr int kThreads = 12;

int64_t address_space_mib() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE) >> 20;
}

/// Addresses that threads take in a process of its own: 1 for each 16 MiB.
int taken_by_threads(const std::function<void()>& first) {
  const int status = test::in_child([&] {
    first();
    const int64_t before = address_space_mib();
    int64_t during = 0;
    std::barrier all(kThreads, [&]() noexcept { during = address_space_mib(); });
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        const std::vector<char> some(1000);
        all.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ::_exit(static_cast<int>((during - before) / 16));
  });
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

bool limit_addresses() {
  const rlimit much{rlim_t{1} << 46, RLIM_INFINITY};
  rlimit limit{};
  return ::setrlimit(RLIMIT_AS, &much) == 0 && ::getrlimit(RLIMIT_AS, &limit) == 0 &&
         limit.rlim_cur == much.rlim_cur;
}

}  // namespace

TEST_CASE("threads share an arena of malloc where address space is limited, and only there") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return test::skip("a sanitizer's malloc has no arenas");
#endif
  if (std::getenv("MALLOC_ARENA_MAX")) return test::skip("MALLOC_ARENA_MAX is set");
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) return test::skip("address space is limited here");
  if (const int status = test::in_child([] { ::_exit(limit_addresses() ? 0 : 1); }); status != 0)
    return test::skip("address space cannot be limited here, as in qemu-user");
  const auto with_limit = [] {
    limit_addresses();
    share_malloc_arena();
  };
  const int own = taken_by_threads(share_malloc_arena), shared = taken_by_threads(with_limit);
  CHECK(own - shared >= 4 * 4);  // of four arenas at least: malloc makes up to eight for each core
}
