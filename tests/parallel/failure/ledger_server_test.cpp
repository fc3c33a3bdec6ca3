#include "parallel/failure/ledger_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/host_name.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/failure/ledger.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace ottava;
using Catch::Contains;
using State = ProgressRecord::State;

namespace {

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

LedgerMessage report_of(int rank, LedgerMessage::Kind kind, const std::string& text = "") {
  return {kind, {.rank = rank}, text};
}

tcp::Connection of_job(const LedgerServer& server) {
  tcp::Connection connection = tcp::connect_to(server.endpoint(), 30);
  connection.send(LedgerServer::greeting(kToken, 0));
  return connection;
}

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

}  // namespace

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
  for (const std::string& first : {failed.encode(), LedgerServer::greeting(kToken + 1, 0), std::string()}) {
    tcp::Connection stranger = tcp::connect_to(server.endpoint(), 30);
    stranger.send(first);
    stranger.send(LedgerServer::greeting(kToken, 0));
    stranger.send(failed.encode());
    CHECK_FALSE(heard(stranger, LedgerMessage::Kind::stop));
  }
  tcp::Connection silent = tcp::connect_to(server.endpoint(), 30);
  rank.send(real.encode());
  CHECK(heard(rank, LedgerMessage::Kind::stop) == "disk full");
  CHECK(silent.read_available());
  CHECK_FALSE(silent.next());
  silent.send(LedgerServer::greeting(kToken, 0));
  CHECK(heard(silent, LedgerMessage::Kind::stop) == "disk full");
}

TEST_CASE("a ledger answers its job alone, and says in which rank it is") {
  LedgerServer server({.rank = 1, .world_size = 2, .token = kToken});
  const LedgerServer::Address address{.endpoint = server.endpoint(), .token = kToken, .rank = 1};
  const tcp::Connection rank = LedgerServer::connect(address, 30);
  CHECK(rank.is_open());
  LedgerServer::Address another_rank = address, another_job = address;
  another_rank.rank = 0;
  another_job.token = kToken + 1;
  for (const LedgerServer::Address& wrong : {another_rank, another_job}) {
    CHECK_THROWS_WITH(LedgerServer::connect(wrong, 0.1),
                      Contains("cannot be reached from") && Contains("; somebody else answers at 127.0.0.1"));
  }
  tcp::Connection asks = tcp::connect_to(server.endpoint(), 30);
  asks.send(LedgerServer::greeting(kToken, 0));
  CHECK(asks.read(30) == LedgerServer::answer(kToken, 1));
  CHECK_FALSE(asks.read(30));
}

TEST_CASE("an address at which somebody else answers is left for the next") {
  tcp::Listener listener;
  int asked = 0;
  const auto is_right = [&](tcp::Connection&) { return ++asked == 2; };
  const std::string endpoint = fmt::format("127.0.0.1;127.0.0.1;{}", listener.port());
  CHECK(tcp::connect_to(endpoint, 30, {.is_right = is_right}).is_open());
  CHECK(asked == 2);
}

TEST_CASE("a ledger closes visitors that do not greet, or say too much") {
  LedgerServer server({.world_size = 1, .token = kToken, .greeting_seconds = 2});
  const auto begin = std::chrono::steady_clock::now();
  tcp::Connection silent = tcp::connect_to(server.endpoint(), 30),
                  endless = tcp::connect_to(server.endpoint(), 30), rank = of_job(server);
  endless.send(std::string(100, 'x'));
  for (tcp::Connection* stranger : {&silent, &endless}) CHECK_FALSE(stranger->read(100));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(90));
  CHECK(rank.read(30) == LedgerServer::answer(kToken, 0));
  rank.send(report_of(0, LedgerMessage::Kind::question, "stuck").encode());
  CHECK(heard(rank, LedgerMessage::Kind::roll_call));
}

TEST_CASE("visitors that do not greet take no more than 64 places of a ledger") {
  LedgerServer server({.world_size = 1, .token = kToken, .greeting_seconds = 3600});
  std::vector<tcp::Connection> silent;
  for (int i = 0; i < 64; ++i) silent.push_back(tcp::connect_to(server.endpoint(), 30));
  tcp::Connection rank = of_job(server);
  CHECK_FALSE(rank.read(0.3));
  silent.pop_back();
  CHECK(rank.read(30) == LedgerServer::answer(kToken, 0));
}

TEST_CASE("ledgers may open as many files as they have ranks, whatever carries tensors") {
  const OpenFileLimit limit(128);
  test::run_thread_ranks({.ranks = 2, .timeout_seconds = 60}, [](Communicator& world) {
    CommunicatorBootstrap bootstrap(world);
    const Ledger ledger(std::make_shared<RankState>(world.rank(), 2), bootstrap);
    Stream stream = Stream::cpu();
    world.barrier(stream, "test");
  });
  CHECK(OpenFileLimit::now() >= 2 * 3 + 256);
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
