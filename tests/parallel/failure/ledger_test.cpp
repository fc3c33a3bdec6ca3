#include "parallel/failure/ledger.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "parallel/failure/ledger_message.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using conformance::expect;
using State = ProgressRecord::State;

namespace {

bool wait_for_failure(RankState& state) {
  for (int i = 0; i < 3000 && !state.failed(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return state.failed();
}

// Ranks with a ledger each and a state that no communicator uses, so that a test says where each rank is.
void with_ledgers(int ranks, const std::function<void(Communicator&, std::shared_ptr<RankState>)>& body) {
  test::run_thread_ranks({.ranks = ranks, .timeout_seconds = 60}, [&](Communicator& world) {
    auto state = std::make_shared<RankState>(world.rank(), world.size());
    CommunicatorBootstrap bootstrap(world);
    Ledger ledger(state, bootstrap, {.connect_seconds = 30, .answer_seconds = 30});
    body(world, state);
  });
}

void meet(Communicator& world) {
  Stream stream = Stream::cpu();
  world.barrier(stream, "test");
}

}  // namespace

TEST_CASE("ledger messages survive the wire") {
  LedgerMessage sent{LedgerMessage::Kind::failed,
                     {.rank = 3,
                      .state = State::inside,
                      .was_inside = true,
                      .step = 12,
                      .call = {.collective = Collective::reduce_scatter,
                               .axis = "tp",
                               .label = "layers.3\nwqkv",
                               .work = "micro-batch 3\nof stage 1",
                               .elements = 77,
                               .collectives = 3,
                               .group = 4'000'000'000u,
                               .ranks = {{.first = 1, .count = 4, .stride = 2}, {.first = 20}},
                               .sequence = 345,
                               .place = 8},
                      .collectives = {{5, 6}, {4'000'000'000u, 7}},
                      .messages = {{{.first = 0, .count = 3}, 9, 8, true}, {{.first = 7}, 2, 2, false}}},
                     "two\nlines"};
  auto got = LedgerMessage::decode(sent.encode());
  REQUIRE(got);
  CHECK(got->kind == LedgerMessage::Kind::failed);
  CHECK((got->record.rank == 3 && got->record.state == State::inside && got->record.was_inside));
  const EnteredCall& call = got->record.call;
  CHECK((got->record.step == 12 && call.sequence == 345 && call.elements == 77 &&
         call.collective == Collective::reduce_scatter));
  CHECK((call.axis == "tp" && call.label == "layers.3 wqkv" && got->text == "two\nlines"));
  CHECK(call.work == "micro-batch 3 of stage 1");
  CHECK((call.group == sent.record.call.group && call.collectives == 3 && call.place == 8 &&
         call.ranks == sent.record.call.ranks));
  CHECK(got->record.collectives == sent.record.collectives);
  CHECK(got->record.messages == sent.record.messages);
}

TEST_CASE("ledger messages from strangers are not understood") {
  const auto reads = [](const std::string& numbers, const std::string& lists = "\n\n",
                        const std::string& messages = "\n") {
    return LedgerMessage::decode("R" + numbers + "\nx\ny\nz\n" + lists + messages).has_value();
  };
  CHECK(reads("1\n0\n0\n0\n0\n0\n0\n0\n0\n0"));
  CHECK(reads("1\n0\n0\n0\n0\n0\n0\n0\n0\n0", "0 4 1 8 1 1\n5 6\n"));
  for (const char* lists : {"0 4\n\n", "0 4 0\n\n", "0 4 -1\n\n", "0 9999999999 1\n\n", "0 4 1 \n\n", "\n5\n",
                            "\n9999999999 1\n", "\n5 x\n"})
    CHECK_FALSE(reads("1\n0\n0\n0\n0\n0\n0\n0\n0\n0", lists));
  CHECK(reads("1\n0\n0\n0\n0\n0\n0\n0\n0\n0", "\n\n", "0 4 1 9 8 1\n"));
  for (const char* messages : {"0 4 1 9 8\n", "0 4 0 9 8 1\n", "0 4 1 9 8 2\n", "0 9999999999 1 9 8 1\n"})
    CHECK_FALSE(reads("1\n0\n0\n0\n0\n0\n0\n0\n0\n0", "\n\n", messages));
  CHECK_FALSE(LedgerMessage::decode(""));
  CHECK_FALSE(LedgerMessage::decode("GET / HTTP/1.1\r\n\r\n"));
  CHECK_FALSE(reads("1\n9\n0\n0\n0\n0\n0\n0\n0\n0"));
  CHECK_FALSE(reads("-1\n0\n0\n0\n0\n0\n0\n0\n0\n0"));
  CHECK_FALSE(reads("1\n0\n0\n99\n0\n0\n0\n0\n0\n0"));
  CHECK_FALSE(reads("1\n0\n0\n0\n0\n0\n0\n-1\n0\n0"));
  CHECK_FALSE(LedgerMessage::decode("R1\n0\n0"));
  std::string valid = LedgerMessage{}.encode();
  std::mt19937 draw(1);
  for (int i = 0; i < 2000; ++i) {  // nothing but a refusal may come of damage
    std::string damaged = valid;
    damaged[draw() % damaged.size()] = static_cast<char>(draw());
    damaged.resize(draw() % (damaged.size() + 1));
    LedgerMessage::decode(damaged);
  }
}

TEST_CASE("ranks that end in order fail no other") {
  int ranks = GENERATE(1, 2, 4);
  std::atomic<int> failures = 0;
  with_ledgers(ranks, [&](Communicator& world, std::shared_ptr<RankState> state) {
    meet(world);
    if (world.rank() % 2) return;  // these leave early
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    failures += state->failed();
  });
  CHECK(failures == 0);
}

TEST_CASE("a rank that fails takes the others with it") {
  int who = GENERATE(0, 1, 2);
  CHECK_NOTHROW(with_ledgers(3, [&](Communicator& world, std::shared_ptr<RankState> state) {
    meet(world);
    if (world.rank() == who) state->fail("[comm] rank stopped: disk full");
    expect(wait_for_failure(*state), "rank {} never heard of it", world.rank());
    expect(state->failure() == "[comm] rank stopped: disk full", "rank {} heard: {}", world.rank(),
           state->failure());
  }));
}

TEST_CASE("the ledger names the rank that is behind") {
  int late = GENERATE(0, 1, 3);
  CHECK_NOTHROW(with_ledgers(4, [&](Communicator& world, std::shared_ptr<RankState> state) {
    state->set_step(5);
    const auto enter = [&](Collective collective, const char* label) {
      return state->enter({.collective = collective,
                           .axis = "dp_shard",
                           .label = label,
                           .ranks = {{.first = 0, .count = 4}}});
    };
    state->leave(enter(Collective::all_gather, "layers.0"));
    if (world.rank() != late) enter(Collective::reduce_scatter, "layers.1");
    meet(world);
    if (world.rank() == 2) state->timeout_message();
    expect(wait_for_failure(*state), "rank {} never heard of it", world.rank());
    std::string want = fmt::format(
        "behind: rank {} is after all_gather 'layers.0' (axis dp_shard, call 1, step 5); waiting:", late);
    expect(state->failure().find(want) != std::string::npos, "rank {} heard: {}", world.rank(),
           state->failure());
    expect(state->failure().find("rank 2 made no progress in reduce_scatter 'layers.1'") != std::string::npos,
           "rank {} heard: {}", world.rank(), state->failure());
  }));
}

TEST_CASE("a stranger's connection to the ledger disturbs no rank") {
  std::atomic<int> failures = 0;
  test::run_thread_ranks({.ranks = 2, .timeout_seconds = 60}, [&](Communicator& world) {
    auto state = std::make_shared<RankState>(world.rank(), 2);
    struct Eavesdropper final : Bootstrap {
      explicit Eavesdropper(Communicator& c) : inner(c) {}
      int rank() const override { return inner.rank(); }
      int size() const override { return inner.size(); }
      std::vector<std::string> all_gather(std::string_view mine) override {
        return heard = inner.all_gather(mine);
      }
      CommunicatorBootstrap inner;
      std::vector<std::string> heard;
    } bootstrap(world);
    Ledger ledger(state, bootstrap);
    for (int i = 0; i < 3; ++i) {
      tcp::Connection stranger = tcp::connect_to(bootstrap.heard[0], 5);
      stranger.send(i == 0 ? LedgerMessage{LedgerMessage::Kind::failed, {.rank = 1}, "not true"}.encode()
                           : "hello");
      stranger.send(std::string(100000, 'x'));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    meet(world);
    failures += state->failed();
    meet(world);
  });
  CHECK(failures == 0);
}
