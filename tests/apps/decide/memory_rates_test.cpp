#include "apps/decide/memory_rates.h"

#include <array>
#include <filesystem>
#include <fstream>

#include "apps/decide/cpu_rates.h"
#include "core/io/file.h"
#include "core/threads/threads_for.h"
#include "parallel/comm/solo_communicator.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"

// How fast a CPU's memory is, and when that is measured again.

using namespace ottava;
using namespace ottava::test;

namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr double kLeast = 1e8;  ///< bytes/s of any machine's memory

const char* const kBusy = " so far, on a busy machine";

Decisions kept_rates(const std::string& folder) { return cpu_rates(folder).read(); }

/// Sets what is kept, as a run on a quiet machine or on a busy one would have measured it.
void keep_rates(const std::string& folder, const std::string& value, bool is_busy = false) {
  Decisions kept = kept_rates(folder);
  for (Decisions::Entry& e : kept.entries) {
    e.value = value;
    e.reason = e.reason.substr(0, e.reason.find(" so far")) + (is_busy ? kBusy : "");
  }
  std::ofstream(cpu_rates(folder).file(), std::ios::trunc) << to_json(kept);
}

}  // namespace

TEST_CASE("a CPU's memory is measured once for each size, and again if the machine was busy") {
  const TemporaryFolder folder;
  SoloCommunicator alone;
  const auto rates = [&](int64_t bytes) { return memory_rates(folder.path(), bytes, alone); };
  const MemoryRates first = rates(3 * kMiB);
  CHECK(first.copied > kLeast);
  CHECK(first.updated > kLeast);
  Decisions kept = kept_rates(folder.path());
  REQUIRE(kept.entries.size() == 2);
  REQUIRE(kept.find("copy of 4 MiB") != nullptr);
  REQUIRE(kept.find("update of 4 MiB") != nullptr);
  CHECK(std::stod(kept.find("copy of 4 MiB")->value) == first.copied);
  CHECK(std::stod(kept.find("update of 4 MiB")->value) == first.updated);

  keep_rates(folder.path(), "2e+06");
  CHECK(rates(4 * kMiB).copied == 2e6);
  CHECK(rates(4 * kMiB).updated == 2e6);
  CHECK(rates(5 * kMiB).copied > kLeast);
  CHECK(kept_rates(folder.path()).entries.size() == 4);

  keep_rates(folder.path(), "2e+06", true);
  CHECK(rates(4 * kMiB).copied > kLeast);
  CHECK(rate_of(kept_rates(folder.path()).find("update of 4 MiB")) > kLeast);
  // What was measured before counts on.
  keep_rates(folder.path(), "2e+18", true);
  CHECK(rates(4 * kMiB).copied == 2e18);
  CHECK(rates(4 * kMiB).updated == 2e18);
}

TEST_CASE("a rate of memory that is known stays so when the other one has to be measured") {
  const TemporaryFolder folder;
  SoloCommunicator alone;
  cpu_rates(folder.path()).write({rate_entry("copy of 4 MiB", 2e6, false, "bytes/s of the fastest copy")});
  const MemoryRates rates = memory_rates(folder.path(), 4 * kMiB, alone);
  CHECK(rates.copied == 2e6);
  CHECK(rates.updated > kLeast);
  CHECK(is_settled(kept_rates(folder.path()).find("copy of 4 MiB")));
}

TEST_CASE("ranks that share a memory measure it all at once, and take the slowest one's rates") {
  const ThreadsFor one(1);  // as ranks have: rates are kept for each number of threads
  const TemporaryFolder first, second;
  std::array<MemoryRates, 2> of{};
  const auto run = [&] {
    run_thread_ranks({.ranks = 2}, [&](Communicator& world) {
      of[world.rank()] = memory_rates((world.rank() == 0 ? first : second).path(), 4 * kMiB, world);
    });
  };
  run();
  const std::string copy = "copy of 4 MiB by each of 2 ranks", update = "update of 4 MiB by each of 2 ranks";
  CHECK(of[0].copied == of[1].copied);
  CHECK(of[0].updated == of[1].updated);
  for (const TemporaryFolder* folder : {&first, &second}) {
    const Decisions kept = kept_rates(folder->path());
    REQUIRE(kept.find(copy) != nullptr);
    CHECK(rate_of(kept.find(copy)) == of[0].copied);
    CHECK(rate_of(kept.find(update)) == of[0].updated);
  }
  // One rank knows: it would measure no memory that others use meanwhile if it did not measure with them.
  keep_rates(first.path(), "2e+06");
  std::filesystem::remove(cpu_rates(second.path()).file());
  run();
  CHECK(of[0].copied > kLeast);
  CHECK(of[1].copied > kLeast);
  keep_rates(first.path(), "2e+06");
  keep_rates(second.path(), "3e+06");
  run();
  for (const MemoryRates& rates : of) {
    CHECK(rates.copied == 2e6);
    CHECK(rates.updated == 2e6);
  }
  // Of rates that have to be measured again, too, every rank gets the same.
  keep_rates(first.path(), "2e+18", true);
  keep_rates(second.path(), "3e+18", true);
  run();
  for (const MemoryRates& rates : of) {
    CHECK(rates.copied == 2e18);
    CHECK(rates.updated == 2e18);
  }
}

TEST_CASE("rates of memory are kept for the ranks of one machine, and every rank gets the slowest one's") {
  const ThreadsFor one(1);
  const TemporaryFolder two_ranks, one_rank;
  std::array<MemoryRates, 3> of{};
  run_thread_ranks({.ranks = 3}, [&](Communicator& world) {
    const bool is_alone = world.rank() == 1;
    of[world.rank()] =
        memory_rates((is_alone ? one_rank : two_ranks).path(), 4 * kMiB, world, is_alone ? "one" : "two");
  });
  CHECK(kept_rates(two_ranks.path()).find("copy of 4 MiB by each of 2 ranks") != nullptr);
  CHECK(kept_rates(one_rank.path()).find("copy of 4 MiB") != nullptr);
  for (const MemoryRates& rates : of) {
    CHECK(rates.copied == of[0].copied);
    CHECK(rates.updated == of[0].updated);
  }
}
