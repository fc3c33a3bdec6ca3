#include "parallel/comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"

using namespace ottava;

namespace {

// One world for all cases: MPI starts once per process. Small pieces, so that long blocks are cut and
// reductions take many segments; the benchmark takes the defaults.
Communicator& world() {
  static std::unique_ptr<Communicator> instance = [] {
    mpi::WorldOptions options{.timeout_seconds = 60};
    if (!std::getenv("DEFAULT_PIECES"))
      options.largest_message_bytes = 100'000, options.workspace_bytes = 24'000;
    return mpi::make_world(options);
  }();
  return *instance;
}

// Seconds of one call, the best of five.
template <class Call>
double seconds_of(Call call) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    Stream stream = Stream::cpu();
    world().barrier(stream, "benchmark");
    auto start = std::chrono::steady_clock::now();
    call(stream).wait(stream);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

// DEFAULT_PIECES=1 mpirun -n 2 build/tests/parallel_mpi_test "[.benchmark]"
TEST_CASE("MPI rates", "[.benchmark]") {
  int64_t n = world().size();
  for (int64_t count : {int64_t{16}, int64_t{4096}, int64_t{1} << 18, int64_t{1} << 22}) {
    std::vector<float> a(static_cast<size_t>(count * n), 1.0f), b(static_cast<size_t>(count * n), 1.0f);
    Tensor whole = view_of(a.data(), {count * n}), block = view_of(b.data(), {count});
    double gather = seconds_of(
        [&](Stream& s) { return world().all_gather(s, {.send = block, .recv = whole, .label = "x"}); });
    double scatter = seconds_of(
        [&](Stream& s) { return world().reduce_scatter(s, {.send = whole, .recv = block, .label = "x"}); });
    double sum = seconds_of([&](Stream& s) { return world().all_reduce(s, {.send = whole, .label = "x"}); });
    double sent = static_cast<double>(4 * count * (n - 1));
    if (world().rank() == 0) {
      std::printf(
          "%9lld KiB sent: all_gather %8.0f us (%.2f GB/s), reduce_scatter %8.0f us (%.2f GB/s), all_reduce "
          "%8.0f us\n",
          static_cast<long long>(4 * count * (n - 1) / 1024), gather * 1e6, sent / gather / 1e9,
          scatter * 1e6, sent / scatter / 1e9, sum * 1e6);
    }
  }
}

TEST_CASE("MPI communicator conforms") {
  // Another MPI's mpirun starts so many worlds of one rank.
  if (const char* ranks = std::getenv("OTTAVA_TEST_RANKS")) REQUIRE(world().size() == std::atoi(ranks));
  for (auto* cases : {&conformance::contract_cases(), &conformance::data_cases()}) {
    for (const auto& item : *cases) {
      world().stats().reset();
      // A rank that fails a case must not leave the others waiting in it.
      try {
        item.run(world());
        SUCCEED(item.name);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s: %s\n", world().rank(), item.name, error.what());
        std::_Exit(1);
      }
    }
  }
}

TEST_CASE("MPI is started once") {
  world();
  CHECK_THROWS_WITH(mpi::make_world({}), Catch::Contains("cannot be started twice"));
}
