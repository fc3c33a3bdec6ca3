#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/host_name.h"
#include "parallel/comm/messages/exchange.h"
#include "parallel/comm/sockets/doorman.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/comm/sockets/tcp_port.h"
#include "parallel/ranks/master.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;

// The C library's, in this program: knows a machine with both kinds of address, the one of IPv6 first, and
// one with two of IPv4.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto original = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const std::string_view known = name ? name : "";
  const char* first = known == "has-both.invalid"  ? "::1"
                      : known == "has-two.invalid" ? "127.0.0.2"
                                                   : nullptr;
  if (!first) return original(name, service, hints, found);
  if (const int error = original(first, service, hints, found)) return error;
  return original("127.0.0.1", service, hints, &(*found)->ai_next);
}

namespace {

/// The bootstrap of rank 0 of two, where a test plays rank 1.
struct Played final : Bootstrap {
  static constexpr uint64_t kToken = 0x1234;
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::vector<std::string> all_gather(std::string_view mine) override {
    if (++calls == 1) return {std::string(mine), ""};  // neither lacks anything
    if (calls == 2) return {fmt::format("{}", kToken), ""};
    endpoint = mine;
    return {endpoint, own_endpoint};
  }
  /// A connection to rank 0, as rank 1 makes it to rank `to`.
  tcp::Connection to_rank_0(int to = 0) const {
    tcp::Connection connection = tcp::connect_to(endpoint, 20);
    connection.send(Doorman::greeting(kToken, 1, to));
    if (to == 0) CHECK(connection.read(20) == Doorman::answer(kToken, 1, to));
    return connection;
  }
  /// Answers the connection that rank 0 makes.
  static tcp::Connection answered(tcp::Connection connection) {
    const bool is_right = connection.read(20) == Doorman::greeting(kToken, 0, 1);
    connection.send(is_right ? Doorman::answer(kToken, 0, 1) : "this is another");
    return connection;
  }
  int calls = 0;
  tcp::Listener listener;
  std::string endpoint, own_endpoint = fmt::format("{};;{}", host_name(), listener.port());
};

/// Listens at one address of this machine, whereas a tcp::Listener does at all.
class AddressListener {
 public:
  /// Port 0: a free one. Nothing if somebody has the port at this address.
  static std::optional<AddressListener> open(const char* address, int port) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    ::inet_pton(AF_INET, address, &name.sin_addr);
    socklen_t length = sizeof name;
    if (::bind(socket, reinterpret_cast<sockaddr*>(&name), length) != 0) return std::nullopt;
    REQUIRE(::listen(socket, 8) == 0);
    REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length) == 0);
    return AddressListener(std::move(socket), ntohs(name.sin_port));
  }
  int port() const { return port_; }
  tcp::Connection accept() { return tcp::Connection(Descriptor(::accept(socket_, nullptr, nullptr))); }

 private:
  AddressListener(Descriptor socket, int port) : socket_(std::move(socket)), port_(port) {}
  Descriptor socket_;
  int port_ = 0;
};

/// At 127.0.0.2 and at 127.0.0.1, with the same port: which is free at the one another process may have at
/// the other.
std::pair<AddressListener, AddressListener> two_listeners() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::optional<AddressListener> first = AddressListener::open("127.0.0.2", 0);
    REQUIRE(first);
    std::optional<AddressListener> second = AddressListener::open("127.0.0.1", first->port());
    if (second) return {std::move(*first), std::move(*second)};
  }
  FAIL("no port is free at two addresses");
  throw std::logic_error("FAIL throws");
}

// So that the other side hears of it as of a connection that was reset.
void reset(tcp::Connection& connection) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(connection.descriptor(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  connection.close();
}

// Whether the other side has closed all of them before a minute is over.
bool until_closed(const std::vector<tcp::Connection*>& connections) {
  const auto is_closed = [](tcp::Connection* one) { return !one->read_available(); };
  for (int i = 0; i < 6000; ++i) {
    if (std::ranges::all_of(connections, is_closed)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Greets and closes in one segment: whoever takes the connection finds both.
void give_up_greeting(const std::string& endpoint, std::string_view text) {
  tcp::Connection connection = tcp::connect_to(endpoint, 20);
  const int yes = 1;
  ::setsockopt(connection.descriptor(), IPPROTO_TCP, TCP_CORK, &yes, sizeof yes);
  connection.send(text);
}

/// A message of one byte, with tag 7, as a rank's port sends it.
void send_x(const tcp::Connection& to) {
  const struct {
    int64_t bytes = 1;
    int32_t tag = 7, magic = 0x0a07a7a1;
  } header;
  ::send(to.descriptor(), &header, sizeof header, MSG_NOSIGNAL);
  ::send(to.descriptor(), "x", 1, MSG_NOSIGNAL);
}

}  // namespace

TEST_CASE("a connection that breaks is named after a while, long before the time limit") {
  Played rank_1;
  auto state = std::make_shared<RankState>(0, 2);
  auto port = std::make_shared<TcpPort>(rank_1, "127.0.0.1", state, TcpPort::Options{.broken_seconds = 0.3});
  std::vector<char> x(size_t{64} << 20);
  const bool sends = GENERATE(false, true);
  const int64_t call = state->enter({.axis = "world", .label = "x"});
  Exchange exchange(port, state);
  const auto begin = std::chrono::steady_clock::now();
  if (sends) {
    tcp::Connection in;
    std::thread answering([&] { in = Played::answered(rank_1.listener.accept()); });
    exchange.send(x.data(), std::ssize(x), 1, 0);
    answering.join();
    reset(in);
    CHECK_THROWS_WITH(
        exchange.finish(),
        Contains("[tcp] the connection rank 0 -> rank 1 (") &&
            Contains("in barrier 'x' (axis world, step 0), and for 0.3 s no rank has said why"));
  } else {
    exchange.receive(x.data(), std::ssize(x), 1, 0);
    rank_1.to_rank_0().close();
    CHECK_THROWS_WITH(exchange.finish(), Contains("[tcp] the connection rank 1 -> rank 0 (") &&
                                             Contains("broke (the other side closed it) in barrier 'x'"));
  }
  const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(seconds >= 0.3);
  CHECK(seconds < 100);  // of 300
  state->leave(call);
}

TEST_CASE("a machine that has addresses of both kinds is reached over IPv4") {
  const tcp::Listener listener;
  const tcp::Connection connection =
      tcp::connect_to(fmt::format("has-both.invalid;;{}", listener.port()), 20);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  REQUIRE(::getsockname(connection.descriptor(), reinterpret_cast<sockaddr*>(&own), &length) == 0);
  CHECK(own.ss_family == AF_INET);
}

TEST_CASE("where the first address of the master's name leads to somebody else, the next is tried") {
  auto listeners = two_listeners();
  AddressListener &other = listeners.first, &rank_0 = listeners.second;
  std::thread others([&] {
    tcp::Connection at_other = other.accept();
    at_other.read(20);
    at_other.send("this is rank 0 of 5");
    tcp::Connection at_rank_0 = rank_0.accept();
    at_rank_0.read(20);
    at_rank_0.send("welcome");
    at_rank_0.send("3:and5:" + at_rank_0.read(20).value_or(""));
  });
  MasterBootstrap bootstrap({"has-two.invalid", other.port()}, {1, 2}, 20);
  CHECK(bootstrap.own_address() == "has-two.invalid");  // over the loopback interface
  CHECK((bootstrap.all_gather("hello") == std::vector<std::string>{"and", "hello"}));
  others.join();
}

TEST_CASE("a connection that a rank gave up before rank 0 saw it takes no place") {
  const HeldPort port;
  const Master master{"127.0.0.1", port.number()};
  std::vector<std::string> said;
  std::thread rank_1([&] {
    give_up_greeting(fmt::format("127.0.0.1;;{}", port.number()), "ottava rank 1 of 2");
    MasterBootstrap bootstrap(master, {1, 2}, 20);
    said = bootstrap.all_gather("here");
  });
  MasterBootstrap bootstrap(master, {0, 2}, 20);
  CHECK((bootstrap.all_gather("too") == std::vector<std::string>{"too", "here"}));
  rank_1.join();
  CHECK((said == std::vector<std::string>{"too", "here"}));
}

TEST_CASE("a rank that does not answer, being stopped, is waited for until the time limit of the call") {
  Played rank_1;
  auto state = std::make_shared<RankState>(0, 2);
  state->set_timeout_seconds(0.5);
  auto port = std::make_shared<TcpPort>(rank_1, "127.0.0.1", state, TcpPort::Options{});
  const int64_t call = state->enter({.axis = "world", .label = "x"});
  Exchange exchange(port, state);
  const char x = 0;
  CHECK_THROWS_WITH(exchange.send(&x, 1, 1, 0),
                    Contains("[comm] rank 0: barrier 'x'") && Contains("made no progress for 0.5 s"));
  state->leave(call);
}

TEST_CASE("where the first address of a rank leads to somebody else, its messages go to the next") {
  auto listeners = two_listeners();
  AddressListener &other = listeners.first, &right = listeners.second;
  Played rank_1;
  rank_1.own_endpoint = fmt::format("has-two.invalid;;{}", other.port());
  auto state = std::make_shared<RankState>(0, 2);
  auto port = std::make_shared<TcpPort>(rank_1, "127.0.0.1", state, TcpPort::Options{});
  const bool answers = GENERATE(false, true);
  std::string came;
  std::thread others([&] {
    tcp::Connection at_other = other.accept();
    if (answers) at_other.send("who is there?");
    if (answers) at_other.read(20);
    at_other.close();
    tcp::Connection at_rank_1 = Played::answered(right.accept());
    char bytes[64];
    for (ssize_t got; (got = ::recv(at_rank_1.descriptor(), bytes, sizeof bytes, 0)) > 0;)
      if (came.append(bytes, got).ends_with("hello")) return;
  });
  Exchange exchange(port, state);
  const std::string text = "hello";
  exchange.send(text.data(), std::ssize(text), 1, 7);
  exchange.finish();
  others.join();
  CHECK(came.size() == 16 + text.size());  // behind the message's header
}

TEST_CASE("a connection for another rank is closed, and takes no place") {
  Played rank_1;
  auto state = std::make_shared<RankState>(0, 2);
  auto port = std::make_shared<TcpPort>(rank_1, "127.0.0.1", state, TcpPort::Options{});
  tcp::Connection right = rank_1.to_rank_0(), wrong = rank_1.to_rank_0(1);
  Exchange exchange(port, state);
  char x = 0;
  exchange.receive(&x, 1, 1, 7);
  bool wrong_is_closed = false;
  std::thread sender([&] {
    wrong_is_closed = until_closed({&wrong});
    send_x(right);
  });
  exchange.finish();
  sender.join();
  CHECK(wrong_is_closed);
  CHECK(x == 'x');
}

TEST_CASE("a connection that a rank gave up takes no place of the one that it made instead") {
  Played rank_1;
  auto state = std::make_shared<RankState>(0, 2);
  auto port = std::make_shared<TcpPort>(rank_1, "127.0.0.1", state, TcpPort::Options{.broken_seconds = 0.3});
  const tcp::Connection right = rank_1.to_rank_0();
  give_up_greeting(rank_1.endpoint, Doorman::greeting(Played::kToken, 1, 0));
  tcp::Connection later = rank_1.to_rank_0(1);
  REQUIRE(until_closed({&later}));  // so the doorman has seen the one before
  send_x(right);
  Exchange exchange(port, state);
  char x = 0;
  exchange.receive(&x, 1, 1, 7);
  exchange.finish();
  CHECK(x == 'x');
}

TEST_CASE("visitors that do not say who they are take no more than 64 places of a rank, and not for long") {
  Played rank_1;
  auto state = std::make_shared<RankState>(0, 2);
  auto port =
      std::make_shared<TcpPort>(rank_1, "127.0.0.1", state, TcpPort::Options{.greeting_seconds = 0.5});
  std::vector<tcp::Connection> silent(70);
  std::vector<tcp::Connection*> first;
  for (tcp::Connection& visitor : silent) {
    visitor = tcp::connect_to(rank_1.endpoint, 20);
    if (first.size() < 64) first.push_back(&visitor);
  }
  ::send(silent[0].descriptor(), "o", 1, MSG_NOSIGNAL);  // and no more
  Exchange exchange(port, state);
  char x = 0;
  exchange.receive(&x, 1, 1, 7);
  bool are_closed = false;
  std::thread failing([&] {
    are_closed = until_closed(first);
    state->fail("that is enough");
  });
  CHECK_THROWS_WITH(exchange.finish(), "that is enough");
  failing.join();
  CHECK(are_closed);
}

TEST_CASE("of a connection that breaks, what the other rank says about it counts") {
  Played rank_1;
  auto state = std::make_shared<RankState>(0, 2);
  auto port = std::make_shared<TcpPort>(rank_1, "127.0.0.1", state, TcpPort::Options{.broken_seconds = 100});
  Exchange exchange(port, state);
  char x = 0;
  exchange.receive(&x, 1, 1, 0);
  rank_1.to_rank_0().close();
  std::thread ledger([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    state->fail("rank 1 stopped: disk full");
  });
  CHECK_THROWS_WITH(exchange.finish(), "rank 1 stopped: disk full");
  ledger.join();
}

TEST_CASE("a process of many ranks may open all files of a large model besides") {
  rlimit before{}, now{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{std::min<rlim_t>(1024, before.rlim_max), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(tcp::allow_open_files(512).needed == 1792);
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &now) == 0);
  CHECK(now.rlim_cur == std::min<rlim_t>(1792 + 1024, before.rlim_max));
  CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}
