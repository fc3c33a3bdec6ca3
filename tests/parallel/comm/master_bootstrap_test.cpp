#include <arpa/inet.h>
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
#include <latch>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/host_name.h"
#include "core/io/descriptor.h"
#include "parallel/comm/sockets/held_port.h"
#include "parallel/comm/tcp.h"
#include "parallel/ranks/master.h"
#include "tests/parallel/comm/communicator_conformance.h"
#include "tests/parallel/comm/rank_threads.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/message_of.h"
#include "tests/support/skip.h"

// How ranks find each other at the master's port, and what is said of those that do not come.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

// Limits, in seconds, for a test in which rank 0 gives up: the next one only where the machine was so busy
// that the other rank had not come by then.
constexpr double kLimits[] = {0.5, 4, 30};

// A rank that has come stays until rank 0 has ended.
void meet(const Master& master, MasterBootstrap::Self self, double limit) {
  MasterBootstrap bootstrap(master, self, limit);
  if (self.rank != 0) bootstrap.all_gather("here");
}

}  // namespace

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

TEST_CASE("each rank hears that rank 0 may not have as many connections as there are ranks") {
  HeldPort port;
  const Master master{"127.0.0.1", port.number()};
  const auto said_by = [&](int rank) -> std::string {
    try {
      MasterBootstrap(master, {rank, 90}, 200);
    } catch (const CommError& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto text = [](const std::string& machine) {
    return fmt::format(
        "[launch] rank 0 needs 526 open files among 90 ranks, but {} allows 100: raise ulimit -n there, or "
        "use MPI",
        machine);
  };
  const pid_t child = test::start_child([&] {
    const rlimit few{100, 100};
    ::setrlimit(RLIMIT_NOFILE, &few);
    if (said_by(0) != text(host_name("its machine"))) ::_exit(1);
  });
  for (int rank = 1; rank < 90; ++rank) CHECK(said_by(rank) == text("127.0.0.1"));
  const int status = test::status_of(child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
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
  if (!has_network) return skip("a network of its own needs root");
  CHECK_THAT(said, Contains("127.0.0.1 cannot be reached"));
}

TEST_CASE("a master's port that is taken is named, and how another is chosen") {
  tcp::Listener other;
  Master master{"127.0.0.1", other.port()};
  const auto said = [&] { return message_of([&] { MasterBootstrap(master, {0, 2}, 0.3); }); };
  const std::string taken = fmt::format(
      "[launch] rank 0 cannot wait for the others on MASTER_PORT {0} ([tcp] cannot listen on port {0}: "
      "Address already in use): ",
      other.port());
  CHECK(said() == taken + "set another MASTER_PORT");
  master.other_port = "start it again";
  CHECK(said() == taken + "start it again");
}

TEST_CASE("a master's port that a connection has is waited for") {
  tcp::Listener elsewhere;
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<uint16_t>(elsewhere.port()));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(client, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0);
  sockaddr_in here{};
  socklen_t length = sizeof here;
  REQUIRE(::getsockname(client, reinterpret_cast<sockaddr*>(&here), &length) == 0);
  const Master master{"127.0.0.1", ntohs(here.sin_port)};
  CHECK(tcp::is_held_by_connections(master.port));
  CHECK_FALSE(tcp::is_held_by_connections(elsewhere.port()));
  const auto errors = run_ranks(2, [&](int rank) {
    const auto let_go = [&] {
      if (rank != 0 || !client.is_open()) return;
      const linger at_once{1, 0};
      ::setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      client = Descriptor();
    };
    MasterBootstrap(master, {rank, 2}, 30, let_go).all_gather("here");
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK_FALSE(client.is_open());
}

TEST_CASE("a port at which somebody listens is not a connection's, whatever the address") {
  for (const char* address : {"127.0.0.1", "127.0.0.2", "::1"}) {
    INFO(address);
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    auto* at = reinterpret_cast<sockaddr*>(&storage);
    const bool is_v6 = std::strchr(address, ':') != nullptr;
    storage.ss_family = is_v6 ? AF_INET6 : AF_INET;
    ::inet_pton(storage.ss_family, address,
                is_v6 ? static_cast<void*>(&reinterpret_cast<sockaddr_in6*>(at)->sin6_addr)
                      : static_cast<void*>(&reinterpret_cast<sockaddr_in*>(at)->sin_addr));
    const Descriptor other(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (is_v6 && (!other.is_open() || ::bind(other, at, sizeof(sockaddr_in6)) != 0)) continue;  // no IPv6
    if (!is_v6) REQUIRE(::bind(other, at, sizeof(sockaddr_in)) == 0);
    REQUIRE(::listen(other, 1) == 0);
    REQUIRE(::getsockname(other, at, &length) == 0);
    const int port = ntohs(reinterpret_cast<sockaddr_in*>(at)->sin_port);  // IPv6 has it at the same place
    CHECK_FALSE(tcp::is_held_by_connections(port));
    CHECK_THAT(message_of([&] {
                 MasterBootstrap({"127.0.0.1", port}, {0, 2}, 100);
               }),
               Contains("Address already in use"));
  }
}

TEST_CASE("a rank's connection keeps nobody from the port of its own end") {
  tcp::Listener master;
  std::optional<tcp::Connection> rank(tcp::connect_to(fmt::format("127.0.0.1;;{}", master.port()), 30));
  tcp::Connection accepted = master.accept();
  sockaddr_in own{};
  socklen_t length = sizeof own;
  REQUIRE(::getsockname(rank->descriptor(), reinterpret_cast<sockaddr*>(&own), &length) == 0);
  CHECK_FALSE(tcp::is_held_by_connections(ntohs(own.sin_port)));
  rank.reset();  // it closes first, and its end stays for a minute
  CHECK_NOTHROW(tcp::Listener(ntohs(own.sin_port)));
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
  CHECK_THAT(
      errors[1],
      Contains("answered 'this is rank 0 of 2': it must be rank 0 of the same 3 ranks; ottava launch and "
               "torchrun need the same --nnodes"));
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
