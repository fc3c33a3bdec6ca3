#include "parallel/failure/ledger.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/host_name.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/failure/ledger_message.h"
#include "parallel/failure/ledger_server.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using Catch::Contains;
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

// Waits for the first message of this kind and returns its text; none: the connection ended without one.
std::optional<std::string> heard(tcp::Connection& connection, LedgerMessage::Kind kind) {
  bool open = true;
  for (int i = 0; i < 3000 && open; ++i) {
    open = connection.read_available();
    while (auto bytes = connection.next()) {
      auto message = LedgerMessage::decode(*bytes);
      if (message && message->kind == kind) return message->text;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return std::nullopt;
}

constexpr uint64_t kToken = 0x1234;

tcp::Connection of_job(const LedgerServer& server) {
  tcp::Connection connection = tcp::connect_to(server.endpoint(), 30);
  connection.send(LedgerServer::greeting(kToken));
  return connection;
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

TEST_CASE("a rank that has connected and said nothing yet is waited for") {
  LedgerServer server({.world_size = 3, .answer_seconds = 30, .token = kToken});
  std::vector<tcp::Connection> ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(of_job(server));
  auto say = [&](int rank, LedgerMessage::Kind kind, const std::string& text = "") {
    const bool late = rank == 2;
    ProgressRecord record{.rank = rank,
                          .state = late ? State::done : State::inside,
                          .call = {.collective = Collective::all_gather,
                                   .axis = "tp",
                                   .label = late ? "layers.0" : "layers.1",
                                   .ranks = {{.first = 0, .count = 3}},
                                   .sequence = late ? 1 : 2,
                                   .place = late ? 1 : 2},
                          .collectives = {{0, late ? 1 : 2}}};
    ranks[static_cast<size_t>(rank)].send(LedgerMessage{kind, record, text}.encode());
  };
  auto hears = [&](int rank, LedgerMessage::Kind kind) {
    return heard(ranks[static_cast<size_t>(rank)], kind);
  };
  say(1, LedgerMessage::Kind::question, "stuck");
  for (int rank : {0, 1, 2}) {
    REQUIRE(hears(rank, LedgerMessage::Kind::roll_call));
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    say(rank, LedgerMessage::Kind::present);
  }
  auto verdict = hears(0, LedgerMessage::Kind::stop);
  REQUIRE(verdict);
  CHECK_THAT(*verdict, Contains("[comm] stuck: behind: rank 2 is after all_gather 'layers.0' (axis tp"));
}

TEST_CASE("a ledger that ends says farewell to ranks that are still there") {
  auto server = std::make_unique<LedgerServer>(LedgerServer::Options{.world_size = 2, .token = kToken});
  tcp::Connection rank = of_job(*server);
  rank.send(LedgerMessage{LedgerMessage::Kind::report, {.rank = 1}, ""}.encode());
  server.reset();
  CHECK(heard(rank, LedgerMessage::Kind::farewell));
}

TEST_CASE("a ledger hears no connection that does not begin with the job's token, and tells it nothing") {
  LedgerServer server({.world_size = 2, .answer_seconds = 30, .token = kToken});
  const LedgerMessage failed{LedgerMessage::Kind::failed, {.rank = 1}, "not true"};
  const LedgerMessage real{LedgerMessage::Kind::failed, {.rank = 1}, "disk full"};
  tcp::Connection rank = of_job(server);
  // Strangers begin with a message, with another job's token, or with an empty message; that they send the
  // right token afterwards does not help.
  for (const std::string& first : {failed.encode(), LedgerServer::greeting(kToken + 1), std::string()}) {
    tcp::Connection stranger = tcp::connect_to(server.endpoint(), 30);
    stranger.send(first);
    stranger.send(LedgerServer::greeting(kToken));
    stranger.send(failed.encode());
    CHECK_FALSE(heard(stranger, LedgerMessage::Kind::stop));
  }
  tcp::Connection silent = tcp::connect_to(server.endpoint(), 30);
  rank.send(real.encode());
  CHECK(heard(rank, LedgerMessage::Kind::stop) == "disk full");
  CHECK(silent.read_available());
  CHECK_FALSE(silent.next());
  silent.send(LedgerServer::greeting(kToken));
  CHECK(heard(silent, LedgerMessage::Kind::stop) == "disk full");
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

namespace {

/// How many files this process may open while it lives.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    set(files);
  }
  ~OpenFileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;

  void set(rlim_t files) const {
    const rlimit limit = {.rlim_cur = files, .rlim_max = before_.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("cannot limit open files");
  }
  static rlim_t now() {
    rlimit limit = {};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  }

 private:
  rlimit before_ = {};
};

// The least number that is no open descriptor of this process: a limit under which none can be opened.
rlim_t first_free_descriptor() {
  const Descriptor next(::dup(0));
  return static_cast<rlim_t>(static_cast<int>(next));
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// As of_job(), so many, once the server has taken them.
std::vector<tcp::Connection> taken_by(const LedgerServer& server, int count) {
  const std::ptrdiff_t before = open_files();
  std::vector<tcp::Connection> connections;
  for (int i = 0; i < count; ++i) connections.push_back(of_job(server));
  while (open_files() < before + 2 * count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return connections;
}

// Seconds of processor that this process takes in half a second.
double busy_seconds() {
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
}

LedgerMessage report_of(int rank, LedgerMessage::Kind kind, const std::string& text = "") {
  return {kind, {.rank = rank}, text};
}

}  // namespace

TEST_CASE("ledgers may open as many files as they have ranks, whatever carries tensors") {
  const OpenFileLimit limit(128);
  with_ledgers(2, [&](Communicator& world, const std::shared_ptr<RankState>&) { meet(world); });
  CHECK(OpenFileLimit::now() == 2 * 3 + 256);
}

TEST_CASE("a ledger for which no descriptor is left waits for one, and hears those that it has") {
  LedgerServer server({.world_size = 2, .answer_seconds = 30, .token = kToken});
  tcp::Connection first = std::move(taken_by(server, 1)[0]), second;
  {
    // One for the connection that is made here, none for its end there.
    const OpenFileLimit limit(first_free_descriptor() + 1);
    second = of_job(server);
    CHECK(busy_seconds() < 0.25);
    first.send(report_of(0, LedgerMessage::Kind::question, "stuck").encode());
    CHECK(heard(first, LedgerMessage::Kind::roll_call));
  }
  CHECK(heard(second, LedgerMessage::Kind::roll_call));
}

TEST_CASE("a ledger that cannot poll hears its ranks all the same, and takes no processor for it") {
  auto server = std::make_unique<LedgerServer>(LedgerServer::Options{.world_size = 2, .token = kToken});
  std::vector<tcp::Connection> ranks = taken_by(*server, 2);
  {
    const OpenFileLimit fewer_than_it_watches(2);
    CHECK(busy_seconds() < 0.25);
    ranks[1].send(report_of(1, LedgerMessage::Kind::failed, "disk full").encode());
    CHECK(heard(ranks[0], LedgerMessage::Kind::stop) == "disk full");
    CHECK(busy_seconds() < 0.25);
    server.reset();
  }
  CHECK(heard(ranks[0], LedgerMessage::Kind::farewell));
}

TEST_CASE("an endpoint without a listener is named") {
  HeldPort nobody;
  CHECK_THROWS_WITH(tcp::connect_to(fmt::format("{};;{}", host_name(), nobody.number()), 0.1),
                    Contains("cannot be reached from"));
  CHECK_THROWS_WITH(tcp::connect_to("nonsense", 0.1), Contains("is not an endpoint"));
}

TEST_CASE("a port that cannot be listened on says why") {
  tcp::Listener first;
  CHECK_THROWS_WITH(tcp::Listener(first.port()),
                    Contains("cannot listen on port") && Contains("Address already in use"));
  std::string why;
  {
    const OpenFileLimit none(0);
    try {
      tcp::Listener{};
    } catch (const CommError& error) {
      why = error.what();
    }
  }
  CHECK(why == "[tcp] cannot listen on port 0: Too many open files");
}
