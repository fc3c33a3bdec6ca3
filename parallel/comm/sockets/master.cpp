#include "parallel/comm/sockets/master.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "core/error.h"
#include "core/listed.h"
#include "core/log.h"

namespace ottava {
namespace {

using Clock = std::chrono::steady_clock;

// After this part of the time limit, which is a minute of the usual five, the log says who is waited for.
constexpr double kFirstToldPart = 5;

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Waits until there is something to read; false at the deadline.
bool await_input(int descriptor, Clock::time_point deadline) {
  pollfd wait{descriptor, POLLIN, 0};
  while (true) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    int ready = ::poll(&wait, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready >= 0 || errno != EINTR) return ready == 1;
  }
}

// The next message, or nothing at the deadline or when the other side closed.
std::optional<std::string> read_message(tcp::Connection& connection, Clock::time_point deadline) {
  while (true) {
    if (auto message = connection.next()) return message;
    if (!await_input(connection.descriptor(), deadline)) return std::nullopt;
    if (!connection.read_available()) return connection.next();
  }
}

std::string greeting(int rank, int size) { return fmt::format("ottava rank {} of {}", rank, size); }

// The rank in a greeting of this job, or -1.
int rank_in(const std::string& text, int size) {
  constexpr std::string_view kStart = "ottava rank ";
  if (!text.starts_with(kStart)) return -1;
  int rank = -1;
  std::from_chars(text.data() + kStart.size(), text.data() + text.size(), rank);
  return rank > 0 && rank < size && text == greeting(rank, size) ? rank : -1;
}

// Lengths, then bytes: what all ranks said, in one message.
std::string packed(const std::vector<std::string>& said) {
  std::string text;
  for (const std::string& one : said) text += fmt::format("{}:", one.size()) + one;
  return text;
}
std::vector<std::string> unpacked(const std::string& text) {
  std::vector<std::string> said;
  for (size_t begin = 0; begin < text.size();) {
    size_t colon = text.find(':', begin), length = 0;
    std::from_chars(text.data() + begin, text.data() + colon, length);
    said.push_back(text.substr(colon + 1, length));
    begin = colon + 1 + length;
  }
  return said;
}

}  // namespace

MasterBootstrap::MasterBootstrap(const Master& master, Self self, double timeout_seconds)
    : self_(self), master_address_(master.address), timeout_seconds_(timeout_seconds) {
  if (self_.rank == 0) {
    await_ranks(master);
    return;
  }
  connections_.push_back(
      tcp::connect_to(fmt::format("{};;{}", master.address, master.port), timeout_seconds));
  connections_[0].send(greeting(self_.rank, self_.size));
  auto answer = read_message(connections_[0], after(timeout_seconds));
  if (!answer || *answer != "welcome") {
    fail<CommError>(
        "launch",
        "rank {} reached {}:{} (MASTER_ADDR, MASTER_PORT), which answered {}: it must be rank 0 of the "
        "same {} ranks",
        self_.rank, master.address, master.port,
        answer ? "'" + *answer + "'" : "nothing before the timeout or the end of the connection", self_.size);
  }
}

void MasterBootstrap::await_ranks(const Master& master) {
  connections_.resize(self_.size);
  if (self_.size == 1) return;
  tcp::Listener listener = [&] {
    try {
      return tcp::Listener(master.port);
    } catch (const CommError& error) {
      fail<CommError>("launch",
                      "rank 0 cannot wait for the others on MASTER_PORT {} ({}): set another MASTER_PORT",
                      master.port, error.what());
    }
  }();
  const Clock::time_point deadline = after(timeout_seconds_);
  double told_at = timeout_seconds_ / kFirstToldPart;
  Clock::time_point tells = after(told_at);
  for (int missing = self_.size - 1; missing > 0;) {
    if (!await_input(listener.descriptor(), std::min(tells, deadline))) {
      std::string names;
      for (int r = 1; r < self_.size; ++r) {
        if (!connections_[r].is_open()) add_item(names, std::to_string(r));
      }
      if (const auto now = Clock::now(); now >= tells && now < deadline) {
        log::info("rank 0 has waited {:.0f} s of at most {} for ranks {} of {} to connect to {}:{}", told_at,
                  timeout_seconds_, names, self_.size, master.address, master.port);
        tells = after(told_at);
        told_at *= 2;
        continue;
      }
      fail<CommError>("launch",
                      "ranks {} of {} did not connect to {}:{} (MASTER_ADDR, MASTER_PORT) within {} s "
                      "(comm.init_timeout_seconds)",
                      names, self_.size, master.address, master.port, timeout_seconds_);
    }
    tcp::Connection visitor = listener.accept();
    auto text = read_message(visitor, std::min(deadline, after(5)));
    int rank = text ? rank_in(*text, self_.size) : -1;
    if (rank < 0) {
      visitor.send(fmt::format("this is rank 0 of {}", self_.size));
      continue;
    }
    tcp::Connection& place = connections_[rank];
    if (place.is_open()) {
      fail<CommError>("launch", "two processes claim to be rank {} of {}: each needs its own RANK", rank,
                      self_.size);
    }
    place = std::move(visitor);
    place.send("welcome");
    --missing;
  }
}

std::string MasterBootstrap::receive(int from) {
  tcp::Connection& connection = connections_[self_.rank == 0 ? from : 0];
  if (auto message = read_message(connection, after(timeout_seconds_))) return *message;
  fail<CommError>("launch", "rank {} heard nothing more from rank {} while the ranks found each other",
                  self_.rank, from);
}

std::vector<std::string> MasterBootstrap::all_gather(std::string_view mine) {
  if (self_.rank != 0) {
    connections_[0].send(mine);
    return unpacked(receive(0));
  }
  std::vector<std::string> said(self_.size);
  said[0] = mine;
  for (int r = 1; r < self_.size; ++r) said[r] = receive(r);
  std::string all = packed(said);
  for (int r = 1; r < self_.size; ++r) {
    if (!connections_[r].send(all)) {
      fail<CommError>("launch", "rank {} is gone while the ranks found each other", r);
    }
  }
  return said;
}

std::string MasterBootstrap::own_address() const {
  if (self_.rank == 0) return master_address_;
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  char text[INET6_ADDRSTRLEN] = {};
  if (::getsockname(connections_[0].descriptor(), reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return master_address_;
  if (storage.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in&>(storage).sin_addr, text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6&>(storage).sin6_addr, text, sizeof text);
  }
  // If it is reached over the loopback interface, the master is on this machine, and others know this machine
  // by the master's name.
  bool loopback = std::strncmp(text, "127.", 4) == 0 || std::strcmp(text, "::1") == 0;
  return loopback ? master_address_ : text;
}

}  // namespace ottava
