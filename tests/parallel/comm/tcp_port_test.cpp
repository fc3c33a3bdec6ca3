#include "parallel/comm/sockets/tcp_port.h"

#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <latch>
#include <thread>

#include "core/error.h"
#include "core/host_name.h"
#include "parallel/comm/host_communicator.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/ranks/master.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ottava;
using Catch::Contains;

namespace {

// Every rank in a thread of its own, as if it were a process. Returns what each one threw.
std::vector<std::string> run_ranks(int n, const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

// Limits, in seconds, for a test in which rank 0 gives up: the next one only where the machine was so busy
// that the other rank had not come by then.
constexpr double kLimits[] = {0.5, 4, 30};

// A rank that has come stays until rank 0 has ended.
void meet(const Master& master, MasterBootstrap::Self self, double limit) {
  MasterBootstrap bootstrap(master, self, limit);
  if (self.rank != 0) bootstrap.all_gather("here");
}

bool has_ipv6() {
  const Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  return socket.is_open() &&
         ::bind(socket, reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) == 0;
}

std::unique_ptr<Communicator> world_of(MasterBootstrap& bootstrap, int64_t largest_message,
                                       int64_t workspace) {
  auto state = std::make_shared<RankState>(bootstrap.rank(), bootstrap.size());
  state->set_timeout_seconds(20);
  auto port = std::make_shared<TcpPort>(bootstrap, bootstrap.own_address(), state,
                                        TcpPort::Options{.largest_message_bytes = largest_message});
  return make_message_world(std::move(port), std::move(state), workspace);
}

}  // namespace

TEST_CASE("TCP communicator conforms") {
  int n = GENERATE(1, 2, 3, 4);
  HeldPort port;
  Master master{"127.0.0.1", port.number()};
  auto errors = run_ranks(n, [&](int rank) {
    MasterBootstrap bootstrap(master, {rank, n}, 20);
    // Small pieces, so that long blocks are cut and reductions take many segments.
    auto world = world_of(bootstrap, 100'000, 24'000);
    for (auto* cases : {&conformance::contract_cases(), &conformance::data_cases()}) {
      for (const auto& item : *cases) {
        world->stats().reset();
        try {
          item.run(*world);
        } catch (const std::exception& error) {
          world->abort(error.what());
          throw std::runtime_error(fmt::format("{}: {}", item.name, error.what()));
        }
      }
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("ranks tell each other a few bytes through the master") {
  HeldPort port;
  Master master{"127.0.0.1", port.number()};
  auto errors = run_ranks(5, [&](int rank) {
    MasterBootstrap bootstrap(master, {rank, 5}, 20);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::string> said =
          bootstrap.all_gather(std::string(static_cast<size_t>(rank * round), 'x') + ":;");
      conformance::expect(said.size() == 5, "{} ranks spoke", said.size());
      for (int r = 0; r < 5; ++r) {
        conformance::expect(
            said[static_cast<size_t>(r)] == std::string(static_cast<size_t>(r * round), 'x') + ":;",
            "rank {} said '{}'", r, said[static_cast<size_t>(r)]);
      }
    }
    conformance::expect(bootstrap.own_address() == "127.0.0.1", "own address {}", bootstrap.own_address());
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("more ranks meet than rank 0 may open files at first") {
  constexpr int kRanks = 60;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{std::min<rlim_t>(kRanks, before.rlim_max), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  HeldPort port;
  const Master master{"127.0.0.1", port.number()};
  const auto meet_all = [&](int rank) { MasterBootstrap(master, {rank, kRanks}, 20).all_gather("here"); };
  for (const std::string& error : run_ranks(kRanks, meet_all)) CHECK(error == "");
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("rank 0 does not wait for more ranks than it may have connections") {
  HeldPort port;
  const Master master{"127.0.0.1", port.number()};
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{100, 100};
    ::setrlimit(RLIMIT_NOFILE, &few);
    std::string said;
    try {
      MasterBootstrap(master, {0, 90}, 200);
    } catch (const CommError& error) {
      said = error.what();
    }
    ::_exit(said == fmt::format("[launch] rank 0 needs 526 open files among 90 ranks, but {} allows 100: "
                                "raise ulimit -n there, or use MPI",
                                host_name("its machine"))
                ? 0
                : 7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("ranks meet over IPv6") {
  HeldPort port;
  if (!has_ipv6()) return test::skip("there is no IPv6 here");
  const Master master{"::1", port.number()};
  auto errors = run_ranks(3, [&](int rank) {
    MasterBootstrap bootstrap(master, {rank, 3}, 20);
    conformance::expect(bootstrap.own_address() == "::1", "own address {}", bootstrap.own_address());
    auto world = world_of(bootstrap, 1 << 20, 1 << 20);
    float x = static_cast<float>(rank + 1);
    Stream stream = Stream::cpu();
    world->all_reduce(stream, {.send = view_of(&x, {1}), .label = "x"}).wait(stream);
    conformance::expect(x == 6.0f, "the sum is {}", x);
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK_THROWS_WITH(MasterBootstrap(master, {0, 2}, 0.1), Contains("did not connect to [::1]:"));
}

TEST_CASE("a listener takes connections of IPv4 and of IPv6") {
  tcp::Listener listener;
  CHECK(tcp::connect_to(fmt::format("127.0.0.1;;{}", listener.port()), 20).is_open());
  if (!has_ipv6()) return test::skip("there is no IPv6 here");
  CHECK(tcp::connect_to(fmt::format("::1;;{}", listener.port()), 20).is_open());
  CHECK(tcp::connect_to(fmt::format("no-such-host;::1;{}", listener.port()), 20).is_open());
}

TEST_CASE("ranks that do not come are named") {
  HeldPort port;
  Master master{"127.0.0.1", port.number()};
  std::string said, log;
  for (double limit : kLimits) {
    const CapturedOutput captured;
    said = run_ranks(2, [&](int rank) { meet(master, {rank, 4}, limit); })[0];
    log = captured.text();
    CHECK_THAT(said,
               Contains("of 4 did not connect to 127.0.0.1:") && Contains(fmt::format("within {} s", limit)));
    if (said.find("ranks 1, 2, 3 of 4") == std::string::npos && log.find("to connect") != std::string::npos)
      break;
  }
  CHECK_THAT(said, Contains("ranks 2, 3 of 4"));
  CHECK_THAT(log, Contains("2, 3 of 4 to connect to 127.0.0.1:"));
}

TEST_CASE("a master that is not there is named") {
  HeldPort port;
  CHECK_THROWS_WITH(MasterBootstrap({"127.0.0.1", port.number()}, {1, 2}, 0.3),
                    Contains("127.0.0.1 cannot be reached"));
}

// Of the two ports that the system may choose for this end of the connection, one is the other end's.
TEST_CASE("a rank that waits for its master is not connected with itself") {
  std::string said;
  bool has_network = false;
  std::thread([&] {
    has_network = ::unshare(CLONE_NEWNET) == 0;
    if (!has_network) return;  // a network of this thread's own, for which one must be root
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    const tcp::Listener any;
    ::ioctl(any.descriptor(), SIOCSIFFLAGS, &loopback);
    std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << "40000 40001";
    try {
      MasterBootstrap({"127.0.0.1", 40000}, {1, 2}, 0.2);
    } catch (const CommError& error) {
      said = error.what();
    }
  }).join();
  if (!has_network) return test::skip("a network of its own needs root");
  CHECK_THAT(said, Contains("127.0.0.1 cannot be reached"));
}

TEST_CASE("a master's port that is taken is named") {
  tcp::Listener other;
  CHECK_THROWS_WITH(
      MasterBootstrap({"127.0.0.1", other.port()}, {0, 2}, 0.3),
      Contains("rank 0 cannot wait for the others on MASTER_PORT") && Contains("set another MASTER_PORT"));
}

TEST_CASE("ranks of another job are sent away, doubles are refused") {
  HeldPort port;
  Master master{"127.0.0.1", port.number()};
  std::vector<std::string> errors;
  for (double limit : kLimits) {
    errors = run_ranks(2, [&](int rank) { MasterBootstrap(master, {rank, rank == 0 ? 2 : 3}, limit); });
    CHECK_THAT(errors[0], Contains("ranks 1 of 2 did not connect"));
    if (errors[1].find("answered 'this is") != std::string::npos) break;
  }
  CHECK_THAT(errors[1],
             Contains("answered 'this is rank 0 of 2'") && Contains("it must be rank 0 of the same 3 ranks"));
  errors = run_ranks(3, [&](int i) { meet(master, {i == 0 ? 0 : 1, 3}, 20); });
  CHECK_THAT(errors[0], Contains("two processes claim to be rank 1 of 3"));
}

TEST_CASE("visitors that say nothing do not delay the ranks that meet") {
  HeldPort port;
  const Master master{"127.0.0.1", port.number()};
  const std::string endpoint = fmt::format("127.0.0.1;;{}", port.number());
  double seconds = 0;
  auto errors = run_ranks(2, [&](int rank) {
    std::vector<tcp::Connection> silent;
    for (int i = 0; i < 12 && rank == 1; ++i) silent.push_back(tcp::connect_to(endpoint, 20));
    const auto begin = std::chrono::steady_clock::now();
    MasterBootstrap(master, {rank, 2}, 100);
    if (rank == 1) seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(seconds < 40);  // of the 60 that they would take one after the other
}

TEST_CASE("a rank that is started again while others have not come takes its place") {
  HeldPort port;
  const Master master{"127.0.0.1", port.number()};
  std::latch has_left(1);
  auto errors = run_ranks(4, [&](int thread) {
    if (thread < 3) {
      if (thread > 0) has_left.wait();
      MasterBootstrap bootstrap(master, {thread, 3}, 20);
      const std::vector<std::string> said = bootstrap.all_gather(fmt::format("{}", thread));
      conformance::expect(said == std::vector<std::string>{"0", "1", "2"}, "rank {} heard other ranks",
                          thread);
      return;
    }
    tcp::Connection first = tcp::connect_to(fmt::format("127.0.0.1;;{}", port.number()), 20);
    first.send("ottava rank 1 of 3");
    const auto answer = first.read(20);
    first.send("what the first one said");
    first.close();
    has_left.count_down();
    conformance::expect(answer == "welcome", "the answer is {}", answer.value_or("none"));
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("a rank that has left again is named with those that did not come") {
  HeldPort port;
  const Master master{"127.0.0.1", port.number()};
  auto errors = run_ranks(2, [&](int rank) {
    if (rank == 0) MasterBootstrap(master, {0, 3}, 2);
    tcp::Connection other = tcp::connect_to(fmt::format("127.0.0.1;;{}", port.number()), 20);
    other.send("ottava rank 1 of 3");
    other.read(20);
  });
  CHECK_THAT(errors[0], Contains("ranks 1, 2 of 3 did not connect"));
}

TEST_CASE("strangers at a port are ignored") {
  HeldPort port;
  Master master{"127.0.0.1", port.number()};
  auto errors = run_ranks(2, [&](int rank) {
    MasterBootstrap bootstrap(master, {rank, 2}, 20);
    struct Spy final : Bootstrap {
      explicit Spy(MasterBootstrap& of) : of(of) {}
      int rank() const override { return of.rank(); }
      int size() const override { return of.size(); }
      std::vector<std::string> all_gather(std::string_view mine) override {
        return last = of.all_gather(mine);
      }
      MasterBootstrap& of;
      std::vector<std::string> last;
    } spy(bootstrap);
    auto state = std::make_shared<RankState>(rank, 2);
    auto port = std::make_shared<TcpPort>(spy, "127.0.0.1", state, TcpPort::Options{});
    tcp::Connection stranger = tcp::connect_to(spy.last[static_cast<size_t>(1 - rank)], 5);
    char noise[64] = {};
    ::send(stranger.descriptor(), noise, sizeof noise, MSG_NOSIGNAL);
    auto world = make_message_world(std::move(port), state);
    float x = static_cast<float>(rank + 1);
    Stream stream = Stream::cpu();
    world->all_reduce(stream, {.send = view_of(&x, {1}), .label = "x"}).wait(stream);
    conformance::expect(x == 3.0f, "the sum is {}", x);
  });
  for (const std::string& error : errors) CHECK(error == "");
}

namespace {

/// Moves what the socket holds five times a second.
class SlowPort final : public MessagePort {
 public:
  explicit SlowPort(std::shared_ptr<MessagePort> port) : port_(std::move(port)) {}
  std::string_view name() const override { return port_->name(); }
  int largest_tag() const override { return port_->largest_tag(); }
  int64_t largest_message_bytes() const override { return port_->largest_message_bytes(); }
  Ticket send(const void* data, int64_t bytes, int peer, int tag) override {
    return port_->send(data, bytes, peer, tag);
  }
  Ticket receive(void* data, int64_t bytes, int peer, int tag) override {
    return port_->receive(data, bytes, peer, tag);
  }
  void test(std::span<Ticket> tickets, std::vector<Ended>& ended) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    port_->test(tickets, ended);
  }
  void abandon_send(Ticket ticket) noexcept override { port_->abandon_send(ticket); }
  void abandon_receive(Ticket ticket) noexcept override { port_->abandon_receive(ticket); }

 private:
  std::shared_ptr<MessagePort> port_;
};

}  // namespace

TEST_CASE("a message that takes longer than the time limit arrives as long as some of it moves") {
  HeldPort port;
  Master master{"127.0.0.1", port.number()};
  double seconds = 0;
  auto errors = run_ranks(2, [&](int rank) {
    MasterBootstrap bootstrap(master, {rank, 2}, 20);
    auto state = std::make_shared<RankState>(rank, 2);
    std::shared_ptr<MessagePort> own =
        std::make_shared<TcpPort>(bootstrap, bootstrap.own_address(), state, TcpPort::Options{});
    if (rank == 1) own = std::make_shared<SlowPort>(own);
    auto world = make_message_world(own, state);
    state->set_timeout_seconds(1);
    std::vector<float> x(size_t{40} << 20, static_cast<float>(1 - rank));
    const Tensor tensor = view_of(x.data(), {std::ssize(x)});
    Stream stream = Stream::cpu();
    const auto begin = std::chrono::steady_clock::now();
    if (rank == 0) {
      world->send(stream, {.tensor = tensor, .to = 1, .label = "x"}).wait(stream);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    } else {
      world->recv(stream, {.tensor = tensor, .from = 0, .label = "x"}).wait(stream);
      conformance::expect(x.front() == 1 && x.back() == 1, "received {} to {}", x.front(), x.back());
    }
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(seconds > 1.5);
}

TEST_CASE("a rank that fails while it connects to another gives up") {
  struct Alone final : Bootstrap {
    int rank() const override { return 0; }
    int size() const override { return 2; }
    std::vector<std::string> all_gather(std::string_view mine) override {
      if (mine.empty()) return {"", ""};  // neither lacks anything
      return {std::string(mine), fmt::format("{};;{}", host_name(), nobody.number())};
    }
    HeldPort nobody;
  } bootstrap;
  auto state = std::make_shared<RankState>(0, 2);
  TcpPort port(bootstrap, "127.0.0.1", state, {.connect_seconds = 20});
  std::thread failing([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    state->fail("rank 1 is gone");
  });
  float x = 0;
  CHECK_THROWS_WITH(port.send(&x, sizeof x, 1, 0), "rank 1 is gone");
  failing.join();
}

TEST_CASE("a call that the others do not make ends at the time limit") {
  HeldPort port;
  Master master{"127.0.0.1", port.number()};
  auto errors = run_ranks(2, [&](int rank) {
    MasterBootstrap bootstrap(master, {rank, 2}, 20);
    auto world = world_of(bootstrap, 1 << 20, 1 << 20);
    world->state().set_timeout_seconds(0.5);
    std::vector<float> x(rank == 0 ? 100'000 : 200'000);
    Stream stream = Stream::cpu();
    world->all_reduce(stream, {.send = view_of(x.data(), {static_cast<int64_t>(x.size())}), .label = "x"})
        .wait(stream);
  });
  for (const std::string& error : errors)
    CHECK_THAT(error, Contains("all_reduce 'x' (axis world, step 0) made no progress for 0.5 s"));
}
