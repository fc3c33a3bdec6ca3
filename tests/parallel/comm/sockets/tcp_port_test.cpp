#include "parallel/comm/sockets/tcp_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <thread>

#include "core/host_name.h"
#include "parallel/comm/messages/host_communicator.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/ranks/master.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/parallel/comm/rank_threads.h"
#include "tests/support/catch.h"
#include "tests/support/skip.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

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

TEST_CASE("ranks meet over IPv6") {
  HeldPort port;
  if (!has_ipv6()) return skip("there is no IPv6 here");
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
  if (!has_ipv6()) return skip("there is no IPv6 here");
  CHECK(tcp::connect_to(fmt::format("::1;;{}", listener.port()), 20).is_open());
  CHECK(tcp::connect_to(fmt::format("no-such-host;::1;{}", listener.port()), 20).is_open());
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
