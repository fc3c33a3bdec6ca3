#include "parallel/comm/thread/thread_communicator.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "parallel/ranks/agree.h"
#include "parallel/ranks/rank_groups.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using conformance::expect;
using conformance::expect_error;

namespace {

Request sum(Communicator& comm, Stream& stream, std::vector<float>& x, std::string_view label) {
  return comm.all_reduce(stream,
                         {.send = view_of(x.data(), {static_cast<int64_t>(x.size())}), .label = label});
}

}  // namespace

TEST_CASE("a rank that throws wakes all others, which name it") {
  int ranks = GENERATE(2, 3, 8);
  std::atomic<int> named = 0;
  std::vector<std::vector<float>> x(8, std::vector<float>(100, 1.0f));  // outlive the calls
  auto body = [&](Communicator& world) {
    Stream stream = Stream::cpu();
    auto& mine = x[static_cast<size_t>(world.rank())];
    sum(world, stream, mine, "first").wait(stream);
    if (world.rank() == 1) throw DataError("data", "no more text");
    expect_error<CommError>("rank 1 stopped: [data] no more text",
                            [&] { sum(world, stream, mine, "second").wait(stream); });
    expect_error<CommError>("rank 1 stopped", [&] { sum(world, stream, mine, "third"); });
    ++named;
  };
  CHECK_THROWS_WITH(run_thread_ranks({.ranks = ranks, .timeout_seconds = 60}, body),
                    Contains("no more text"));
  CHECK(named == ranks - 1);
}

TEST_CASE("a rank that never comes is named when the time is up") {
  std::atomic<int> named = 0;
  std::atomic<bool> over = false;
  std::vector<std::vector<float>> x(4, std::vector<float>(10, 1.0f));
  auto start = std::chrono::steady_clock::now();
  auto body = [&](Communicator& world) {
    Stream stream = Stream::cpu();
    auto& mine = x[static_cast<size_t>(world.rank())];
    world.state().set_step(3);
    sum(world, stream, mine, "layers.0").wait(stream);
    world.state().set_timeout_seconds(1.0);  // short only now: threads may start late
    if (world.rank() == 2) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } else {
      expect_error<CommError>(
          "behind: rank 2 is after all_reduce 'layers.0' (axis world, call 1, step 3); waiting: ranks 0, 1, "
          "3 "
          "are in all_reduce 'layers.1'",
          [&] { sum(world, stream, mine, "layers.1").wait(stream); });
      if (++named == 3) over = true;
    }
  };
  CHECK_NOTHROW(run_thread_ranks({.ranks = 4, .timeout_seconds = 60}, body));
  CHECK(named == 3);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(50));
}

TEST_CASE("ranks that make different calls are told so") {
  auto differing = [](auto call) {
    std::atomic<int> named = 0;
    std::vector<std::vector<float>> x(3, std::vector<float>(12, 1.0f));
    run_thread_ranks({.ranks = 3, .timeout_seconds = 60}, [&](Communicator& world) {
      Stream stream = Stream::cpu();
      expect_error<CommError>("of axis world disagree",
                              [&] { call(world, stream, x[static_cast<size_t>(world.rank())]); });
      ++named;
    });
    return named.load();
  };
  auto tensor = [](std::vector<float>& x, int64_t n) { return view_of(x.data(), {n}); };
  CHECK(differing([&](Communicator& w, Stream& s, auto& x) {  // sizes
          w.all_reduce(s, {.send = tensor(x, 4 + w.rank()), .label = "x"}).wait(s);
        }) == 3);
  CHECK(differing([&](Communicator& w, Stream& s, auto& x) {  // operations
          w.all_reduce(s,
                       {.send = tensor(x, 4), .op = w.rank() ? ReduceOp::max : ReduceOp::sum, .label = "x"})
              .wait(s);
        }) == 3);
  CHECK(differing([&](Communicator& w, Stream& s, auto& x) {  // kinds
          if (w.rank() == 1)
            w.broadcast(s, {tensor(x, 4), 0, "x"}).wait(s);
          else
            w.all_reduce(s, {.send = tensor(x, 4), .label = "x"}).wait(s);
        }) == 3);
  CHECK(differing([&](Communicator& w, Stream& s, auto& x) {  // roots
          w.broadcast(s, {tensor(x, 4), w.rank(), "x"}).wait(s);
        }) == 3);
  CHECK(differing([&](Communicator& w, Stream& s, auto& x) {  // groups
          Group group(w);
          for (int i = 0; i <= w.rank(); ++i) w.all_reduce(s, {.send = tensor(x, 4), .label = "x"});
          group.end().wait(s);
        }) == 3);
}

TEST_CASE("a receive of another size stops both sides") {
  std::vector<float> x(8, 1.0f), y(8);
  std::atomic<int> named = 0;
  run_thread_ranks({.ranks = 2, .timeout_seconds = 60}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    expect_error<CommError>("'in' from rank 0 (axis world) is f32 [4], but f32 [8] 'out' was sent", [&] {
      if (world.rank() == 0)
        world.send(stream, {view_of(x.data(), {8}), 1, "out"}).wait(stream);
      else
        world.recv(stream, {view_of(y.data(), {4}), 0, "in"}).wait(stream);
    });
    ++named;
  });
  CHECK(named == 2);
}

TEST_CASE("calls progress while the rank computes") {
  std::vector<std::vector<float>> x(2, std::vector<float>(1000, 1.0f));
  CHECK_NOTHROW(run_thread_ranks({.ranks = 2, .timeout_seconds = 60}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    expect(world.overlaps(), "thread ranks overlap");
    Request request = sum(world, stream, x[static_cast<size_t>(world.rank())], "x");
    for (int i = 0; i < 2000 && !request.done(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    expect(request.done(), "nothing moved without a wait");
  }));
}

TEST_CASE("ranks agree or are refused together") {
  std::atomic<int> refused = 0;
  run_thread_ranks({.ranks = 4, .timeout_seconds = 60}, [&](Communicator& world) {
    require_equal_everywhere(world, "the configuration", 17);
    require_no_complaint(world, "");
    expect_error<ConfigError>(
        "the configuration differs between ranks: rank 0 has 0000000000000011 (on 3 ranks), rank 2 has "
        "0000000000000012 (2 kinds in all)",
        [&] { require_equal_everywhere(world, "the configuration", world.rank() == 2 ? 18 : 17); });
    expect_error<ConfigError>("rank 1 cannot go on: no such file",
                              [&] { require_no_complaint(world, world.rank() == 0 ? "" : "no such file"); });
    require_equal_everywhere(world, "the program", ~uint64_t{0});
    ++refused;
  });
  CHECK(refused == 4);
}

TEST_CASE("a mesh has its communicators") {
  CHECK_NOTHROW(run_thread_ranks({.ranks = 8, .timeout_seconds = 60}, [](Communicator& world) {
    Mesh mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8);
    const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
    RankGroups groups(world.split("control", all), world.split("world", all), mesh);
    Stream stream = Stream::cpu();
    auto total = [&](Communicator& comm) {
      std::vector<double> x(1, world.rank());
      comm.all_reduce(stream, {.send = view_of(x.data(), {1}), .label = "x"}).wait(stream);
      return x[0];
    };
    int r = world.rank();
    expect(total(*groups.tp) == (r | 1) + (r & ~1), "tp");
    expect(total(*groups.dp_shard) == (r | 2) + (r & ~2), "dp_shard");
    expect(total(*groups.dp_replicate) == (r | 4) + (r & ~4), "dp_replicate");
    expect(total(*groups.world) == 28, "world");
    expect(groups.loss->size() == 4 && groups.loss->world_ranks() == mesh.loss_group(r), "loss");
    expect(groups.replica->size() == 4 && groups.replica->world_ranks() == mesh.replica_group(r), "replica");
  }));
  CHECK_THROWS_WITH(run_thread_ranks({.ranks = 0}, [](Communicator&) {}), Contains("expected at least 1"));
}
