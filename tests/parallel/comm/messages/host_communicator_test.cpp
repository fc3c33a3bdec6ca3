#include "parallel/comm/messages/host_communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <latch>
#include <thread>

#include "parallel/comm/agree.h"
#include "parallel/comm/all_ranks.h"
#include "parallel/comm/messages/exchange.h"
#include "parallel/sharding/rank_groups.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using Catch::Contains;
using conformance::expect;
using conformance::expect_error;

namespace {

Request sum(Communicator& comm, Stream& stream, std::vector<float>& x, std::string_view label) {
  return comm.all_reduce(stream,
                         {.send = view_of(x.data(), {static_cast<int64_t>(x.size())}), .label = label});
}

// `request` cannot end. The time limit becomes short when all that are stuck are inside their calls, however
// late they come; the account is one for all.
void expect_stuck(Communicator& world, std::latch& stuck, std::string_view account, const Request& request) {
  while (world.state().progress().state != ProgressRecord::State::inside)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stuck.arrive_and_wait();
  world.state().set_timeout_seconds(0.2);
  Stream stream = Stream::cpu();
  expect_error<CommError>(account, [&] { request.wait(stream); });
}

// Until a verdict would say that this rank awaits a message.
void until_awaited(Communicator& world) {
  const auto is_awaited = [&] {
    return std::ranges::any_of(world.state().progress_with_messages().messages, &PeerMessages::is_awaited);
  };
  while (!is_awaited()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

TEST_CASE("a rank that throws wakes all others, which name it") {
  int ranks = GENERATE(2, 3, 8);
  std::atomic<int> named = 0;
  std::latch begun(ranks);
  std::vector<std::vector<float>> x(8, std::vector<float>(100, 1.0f));  // outlive the calls
  auto body = [&](Communicator& world) {
    Stream stream = Stream::cpu();
    auto& mine = x[static_cast<size_t>(world.rank())];
    sum(world, stream, mine, "first").wait(stream);
    begun.arrive_and_wait();  // one may be through the call while others are still in it
    if (world.rank() == 1) throw DataError("data", "no more text");
    expect_error<CommError>("rank 1 stopped: [data] no more text",
                            [&] { sum(world, stream, mine, "second").wait(stream); });
    expect_error<CommError>("rank 1 stopped", [&] { sum(world, stream, mine, "third"); });
    ++named;
  };
  CHECK_THROWS_WITH(test::run_thread_ranks({.ranks = ranks, .timeout_seconds = 60}, body),
                    Contains("no more text"));
  CHECK(named == ranks - 1);
}

namespace {

/// Takes its time with a message that never comes.
class BusyPort final : public MessagePort {
 public:
  std::string_view name() const override { return "busy"; }
  int largest_tag() const override { return 0x7fffffff; }
  int64_t largest_message_bytes() const override { return int64_t{1} << 30; }
  Ticket send(const void*, int64_t, int, int) override { return this; }
  Ticket receive(void*, int64_t, int, int) override { return this; }
  void test(std::span<Ticket>, std::vector<Ended>&) override {
    is_busy = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  void abandon_send(Ticket) noexcept override {}
  void abandon_receive(Ticket) noexcept override { is_abandoned = true; }

  std::atomic<bool> is_busy = false, is_abandoned = false;
};

}  // namespace

TEST_CASE("when a rank has given up, no call of its own uses its buffers") {
  auto port = std::make_shared<BusyPort>();
  auto world = make_message_world(port, std::make_shared<RankState>(0, 2));
  std::vector<float> x(100);
  Stream stream = Stream::cpu();
  world->recv(stream, {.tensor = view_of(x.data(), {std::ssize(x)}), .from = 1, .label = "x"});
  while (!port->is_busy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  world->abort("no more text");
  CHECK(port->is_abandoned);
}

TEST_CASE("what begins to wait after its rank has failed moves nothing more") {
  auto port = std::make_shared<BusyPort>();
  auto state = std::make_shared<RankState>(0, 2);
  std::vector<float> x(100);
  {
    Exchange exchange(port, state);
    exchange.receive(x.data(), std::ssize(x), 1, 0);
    state->fail("no more text");
    CHECK_THROWS_WITH(exchange.finish(), "no more text");
  }
  CHECK_FALSE(port->is_busy);
  CHECK(port->is_abandoned);
}

TEST_CASE("a rank that never comes is named when the time is up") {
  std::atomic<int> named = 0;
  std::latch stuck(3), over(3);
  std::vector<std::vector<float>> x(4, std::vector<float>(10, 1.0f));
  auto body = [&](Communicator& world) {
    Stream stream = Stream::cpu();
    auto& mine = x[static_cast<size_t>(world.rank())];
    world.state().set_step(3);
    sum(world, stream, mine, "layers.0").wait(stream);
    if (world.rank() == 2) return over.wait();
    expect_stuck(world, stuck,
                 "behind: rank 2 is after all_reduce 'layers.0' (axis world, call 1, step 3); waiting: ranks "
                 "0, 1, 3 are in all_reduce 'layers.1'",
                 sum(world, stream, mine, "layers.1"));
    ++named;
    over.count_down();
  };
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 4, .timeout_seconds = 60}, body));
  CHECK(named == 3);
}

TEST_CASE("ranks that make different calls are told so") {
  auto differing = [](std::string_view account, auto call) {
    std::latch stuck(3);
    std::vector<std::vector<float>> x(3, std::vector<float>(12, 1.0f));
    CHECK_NOTHROW(test::run_thread_ranks({.ranks = 3, .timeout_seconds = 60}, [&](Communicator& world) {
      Stream stream = Stream::cpu();
      expect_stuck(world, stuck, account, call(world, stream, x[static_cast<size_t>(world.rank())].data()));
    }));
  };
  differing("the ranks disagree about the call: rank 0 is in all_reduce 'x of 4 elements'",  // sizes
            [](Communicator& w, Stream& s, float* x) {
              return w.all_reduce(s, {.send = view_of(x, {4 + w.rank()}), .label = "x"});
            });
  differing(
      "the ranks disagree about the call: ranks 0, 2 are in reduce_scatter 'x of 12 elements'",  // kinds
      [](Communicator& w, Stream& s, float* x) {
        if (w.rank() == 1) return w.all_reduce(s, {.send = view_of(x, {12}), .label = "x"});
        return w.reduce_scatter(
            s, {.send = view_of(x, {12}), .recv = view_of(x + 4 * w.rank(), {4}), .label = "x"});
      });
}

TEST_CASE("a rank whose group is shorter is behind") {
  std::latch stuck(2);
  std::vector<std::vector<float>> x(3, std::vector<float>(12, 1.0f));
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 3, .timeout_seconds = 60}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    Group group(world);
    for (int i = 0; i <= world.rank(); ++i) {
      float* mine = x[static_cast<size_t>(world.rank())].data() + 4 * i;
      world.all_reduce(stream, {.send = view_of(mine, {4}), .label = "x"});
    }
    if (world.rank() == 0) return group.end().wait(stream);
    expect_stuck(world, stuck, "behind: rank 0 is after all_reduce 'x' (axis world, call 1", group.end());
  }));
}

TEST_CASE("a receive of another size stops both sides") {
  std::latch stuck(2);
  std::vector<float> x(8, 1.0f), y(8);
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 2, .timeout_seconds = 60}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    Request request = world.rank() == 0 ? world.send(stream, {view_of(x.data(), {8}), 1, "out"})
                                        : world.recv(stream, {view_of(y.data(), {4}), 0, "in"});
    if (world.rank() == 1) until_awaited(world);
    expect_stuck(
        world, stuck,
        "a connection is at fault, or its ranks disagree about the call: rank 0 -> rank 1 (1 messages "
        "sent, 0 received); rank 0 is in send 'out of 8 elements' (axis world, call 1, step 0); rank 1 "
        "is in recv 'in of 4 elements'",
        request);
  }));
}

TEST_CASE("the connection on which a message is lost is named") {
  constexpr int64_t kLost = 77, kLostBytes = kLost * 4;
  const auto delay = [](int64_t bytes) { return bytes == kLostBytes ? 1e6 : 0.0; };
  std::vector<float> out(kLost), in(kLost), x(3, 1.0f);
  std::latch stuck(3);
  CHECK_NOTHROW(
      test::run_thread_ranks({.ranks = 3, .timeout_seconds = 60, .delay = delay}, [&](Communicator& world) {
        Stream stream = Stream::cpu();
        const auto all_reduce = [&] {
          return world.all_reduce(
              stream, {.send = view_of(&x[static_cast<size_t>(world.rank())], {1}), .label = "x"});
        };
        all_reduce().wait(stream);
        Request request;
        if (world.rank() == 0) request = world.send(stream, {view_of(out.data(), {kLost}), 1, "lost"});
        if (world.rank() == 1) request = world.recv(stream, {view_of(in.data(), {kLost}), 0, "lost"});
        if (world.rank() == 2) request = all_reduce();
        if (world.rank() == 1) until_awaited(world);
        expect_stuck(world, stuck,
                     "rank 0 -> rank 1 (2 messages sent, 1 received); rank 0 is in send 'lost of 77 "
                     "elements' (axis world, call 2, step 0); rank 1 is in recv 'lost of 77 elements'",
                     request);
      }));
}

TEST_CASE("as many bytes travel as are counted") {
  std::atomic<int64_t> travelled = 0, counted = 0;
  const auto count = [&](int64_t bytes) { return travelled += bytes, 0.0; };
  std::vector<std::vector<float>> x(3, std::vector<float>(30'000)), y = x;
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 3, .delay = count}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    const auto r = static_cast<size_t>(world.rank());
    Tensor whole = view_of(x[r].data(), {30'000}), other = view_of(y[r].data(), {30'000}),
           block = view_of(y[r].data(), {10'000});
    world.all_reduce(stream, {.send = whole, .label = "x"});
    world.reduce_scatter(stream, {.send = whole, .recv = block, .label = "x"});
    world.all_gather(stream, {.send = block, .recv = whole, .label = "x"});
    world.all_to_all(stream, {.send = whole, .recv = other, .label = "x"}).wait(stream);
    if (world.rank() == 0) world.send(stream, {.tensor = whole, .to = 2, .label = "x"}).wait(stream);
    if (world.rank() == 2) world.recv(stream, {.tensor = whole, .from = 0, .label = "x"}).wait(stream);
    counted += world.stats().sent_bytes();
  }));
  CHECK(counted == (2 * 2 + 2 + 2 + 2 + 1) * 4 * 30'000);
  CHECK(travelled == counted);
}

TEST_CASE("a small exchange among many ranks takes few messages, and adds in rank order") {
  // Messages that each rank sends: 31 in the first round, of those that there are.
  const auto [ranks, messages] = GENERATE(table<int, int>({{8, 7}, {33, 32}, {64, 32}, {100, 34}}));
  std::atomic<int64_t> sent = 0;
  const auto count = [&](int64_t) { return ++sent, 0.0; };
  // Of mixed size and sign, so that another order of summation gives other bits.
  const auto value = [](int rank) { return std::ldexp(rank % 2 ? -1.1 : 1.3, rank * 7 % 90); };
  double sum_in_order = 0;
  for (int r = 0; r < ranks; ++r) sum_in_order += value(r);
  std::vector<std::vector<double>> x(100, std::vector<double>(2)), y(100, std::vector<double>(100));
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = ranks, .delay = count}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    auto &mine = x[static_cast<size_t>(world.rank())], &all = y[static_cast<size_t>(world.rank())];
    mine = {value(world.rank()), 1.0};
    world.all_reduce(stream, {.send = view_of(mine.data(), {2}), .label = "x"}).wait(stream);
    expect(mine == std::vector{sum_in_order, static_cast<double>(world.size())}, "sums");
    const double own = value(world.rank());
    world
        .all_gather(stream,
                    {.send = view_of(&own, {1}), .recv = view_of(all.data(), {world.size()}), .label = "y"})
        .wait(stream);
    for (int r = 0; r < world.size(); ++r) expect(all[static_cast<size_t>(r)] == value(r), "gathered");
  }));
  CHECK(sent == int64_t{2} * ranks * messages);
}

TEST_CASE("small calls of several dtypes are one transaction") {
  std::vector<std::vector<bf16>> odd(11, std::vector<bf16>(3));
  std::vector<std::vector<int64_t>> wide(11, std::vector<int64_t>(1, 1));
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 11}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    const auto r = static_cast<size_t>(world.rank());
    std::ranges::fill(odd[r], bf16(1.0f));
    Group group(world);
    world.all_reduce(stream, {.send = view_of(odd[r].data(), {3}), .label = "odd"});
    world.all_reduce(stream, {.send = view_of(wide[r].data(), {1}), .label = "wide"});
    group.end().wait(stream);
    expect(static_cast<float>(odd[r][2]) == 11.0f && wide[r][0] == 11, "sums");
  }));
}

TEST_CASE("calls progress while the rank computes") {
  std::vector<std::vector<float>> x(2, std::vector<float>(1000, 1.0f));
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 2, .timeout_seconds = 60}, [&](Communicator& world) {
    Stream stream = Stream::cpu();
    expect(world.overlaps(), "thread ranks overlap");
    Request request = sum(world, stream, x[static_cast<size_t>(world.rank())], "x");
    const auto has_ended = [&] { return world.state().progress().state == ProgressRecord::State::done; };
    for (int i = 0; i < 2000 && !has_ended(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    expect(has_ended(), "nothing moved without a wait");
    request.wait(stream);
  }));
}

TEST_CASE("ranks agree or are refused together") {
  std::atomic<int> refused = 0;
  test::run_thread_ranks({.ranks = 4, .timeout_seconds = 60}, [&](Communicator& world) {
    require_equal_everywhere(world, "the configuration", 17);
    require_no_complaint(world, "", "files");
    expect_error<ConfigError>(
        "the configuration differs between ranks: rank 0 has 0000000000000011 (on 3 ranks), rank 2 has "
        "0000000000000012 (2 kinds in all)",
        [&] { require_equal_everywhere(world, "the configuration", world.rank() == 2 ? 18 : 17); });
    expect_error<ConfigError>("rank 1 cannot continue: no such file", [&] {
      require_no_complaint(world, world.rank() == 0 ? "" : "no such file", "files");
    });
    require_equal_everywhere(world, "the program", ~uint64_t{0});
    const auto open = [] { fail<FileError>("open", "no such file"); };
    const auto with_rank_2 = [&](const std::function<void()>& work) {
      fail_together(world, "files", [&] {
        if (world.rank() == 2) work();
      });
    };
    with_rank_2([] {});
    expect_error<FileError>("[files] rank 2: [open] no such file", [&] { with_rank_2(open); });
    try {
      fail_together(world, "files", open);
      expect(false, "all failed alike, and nothing was thrown");
    } catch (const FileError& error) {
      expect(error.what() == std::string("[open] no such file"), "it is said as it was thrown");
    }
    expect_error<MemoryError>("[files] rank 2: [memory] none",
                              [&] { with_rank_2([] { fail<MemoryError>("memory", "none"); }); });
    expect_error<FileError>("[files] rank 2: [file] cannot use /proc/self/no/such: ", [&] {
      with_rank_2([] { std::filesystem::create_directory("/proc/self/no/such"); });
    });
    expect_error<Error>("[files] rank 2: std::bad_alloc",
                        [&] { with_rank_2([] { throw std::bad_alloc(); }); });
    expect_error<MemoryError>("rank 1 cannot continue: too little", [&] {
      refuse_together<MemoryError>(world, "memory", world.rank() == 1 ? "too little" : "");
    });
    const std::unique_ptr<Communicator> alone = world.split("alone", {world.rank()});
    expect_error<FileError>("[open] no such file", [&] { fail_together(*alone, "files", open); });
    ++refused;
  });
  CHECK(refused == 4);
}

TEST_CASE("a mesh has its communicators") {
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 8, .timeout_seconds = 60}, [](Communicator& world) {
    Mesh mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8);
    RankGroups groups = test::groups_over(world, mesh);
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
    expect(groups.control_loss->size() == 4 && groups.control_loss->world_ranks() == mesh.loss_group(r),
           "loss");
    expect(groups.replica->size() == 4 && groups.replica->world_ranks() == mesh.replica_group(r), "replica");
    expect(groups.stage == groups.replica && groups.data_rank == groups.control_loss->rank(),
           "without stages");
  }));
}

TEST_CASE("a mesh of stages and parts of sequences has its communicators") {
  CHECK_NOTHROW(test::run_thread_ranks({.ranks = 8, .timeout_seconds = 60}, [](Communicator& world) {
    Mesh mesh({.pp = 2, .dp_shard = 2, .cp = 2}, 8);
    RankGroups groups = test::groups_over(world, mesh);
    Stream stream = Stream::cpu();
    auto members = [&](Communicator& comm) {
      std::vector<int64_t> ranks(static_cast<size_t>(comm.size()));
      int64_t mine = world.rank();
      comm.all_gather(
              stream,
              {.send = view_of(&mine, {1}), .recv = view_of(ranks.data(), {comm.size()}), .label = "ranks"})
          .wait(stream);
      return std::vector<int>(ranks.begin(), ranks.end());
    };
    const int r = world.rank(), stage = r / 4 * 4;
    expect(members(*groups.pp) == std::vector{r % 4, r % 4 + 4}, "pp");
    expect(members(*groups.cp) == std::vector{r / 2 * 2, r / 2 * 2 + 1}, "cp");
    expect(members(*groups.dp_shard) == std::vector{stage, stage + 1, stage + 2, stage + 3}, "dp_shard x cp");
    expect(members(*groups.stage) == members(*groups.dp_shard), "stage");
    expect(members(*groups.replica) == all_ranks(8), "replica");
    expect(groups.dp_shard->rank() == groups.coordinates.shard_rank, "pieces of a parameter");
    expect(groups.data_rank == r % 4 / 2 && groups.data_size == 2, "ranks of a cp group read the same data");
  }));
}
