#include "core/threads/allowed_cpus.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"

using namespace ottava;

TEST_CASE("CPUs are listed as the kernel lists them, and read back") {
  for (const char* list : {"", "0", "7", "0-3", "0-1,4,6-127,1023"})
    CHECK(cpu_list(parse_cpu_list(list)) == list);
  CHECK(cpu_list({0, 1, 3}) == "0-1,3");
  CHECK(parse_cpu_list("2,4-6") == std::vector<int>{2, 4, 5, 6});
  CHECK_THROWS_WITH(parse_cpu_list("0,x"), "[cpus] 'x' is not the number of a CPU");
  CHECK_THROWS_AS(parse_cpu_list("1-"), ConfigError);
  CHECK_THROWS_AS(parse_cpu_list("-1"), ConfigError);
}

TEST_CASE("a process and all of its threads can be held to some CPUs") {
  const std::vector<int> before = allowed_cpus();
  REQUIRE_FALSE(before.empty());
  CHECK(allowed_cpus(::getpid()) == before);
  std::mutex mutex;
  std::condition_variable turn;
  bool bound = false;
  std::vector<int> seen;
  std::thread other([&] {
    std::unique_lock lock(mutex);
    turn.wait(lock, [&] { return bound; });
    seen = allowed_cpus();
  });
  const bool done = allow_cpus_everywhere({before.back()});
  {
    const std::lock_guard lock(mutex);
    bound = true;
  }
  turn.notify_one();
  other.join();
  CHECK(done);
  CHECK(seen == std::vector<int>{before.back()});
  CHECK(allowed_cpus() == seen);
  CHECK(allow_cpus_everywhere(before));
  CHECK_FALSE(allow_cpus_everywhere({}));
}
