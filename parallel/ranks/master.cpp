#include "parallel/ranks/master.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <list>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/host_name.h"
#include "core/log.h"
#include "core/text/listed.h"
#include "core/text/number.h"
#include "core/text/split.h"
#include "parallel/calls/waited_time.h"

namespace ottava {
namespace {

// How long a visitor has to say which rank it is.
constexpr double kGreetingSeconds = 5;

// How long rank 0 has to answer before another address is tried.
constexpr double kAnswerSeconds = 10;

// After this part of the time limit, which is a minute of the usual five, the log says which ranks are waited
// for.
constexpr double kFirstToldPart = 5;

// What rank 0 has open besides a connection to each rank, generously.
constexpr int kOwnFiles = 32;

// Rank 0's answer to others than its ranks, before their number.
constexpr std::string_view kThisIsRank0 = "this is rank 0 of ";

// Rank 0's answer if it may not open as many files as it needs; "... 526 100": what it needs, and may.
constexpr std::string_view kFewFiles = "rank 0 has too few files";

// How long rank 0 waits for its port while only connections have it: longer than one that has ended.
constexpr double kHeldSeconds = 65;

// Whether the other side closes it within that time, or has; what it has sent stays to be read.
bool closes(const tcp::Connection& connection, std::chrono::milliseconds within) {
  pollfd end{connection.descriptor(), POLLRDHUP, 0};
  return ::poll(&end, 1, static_cast<int>(within.count())) == 1;
}

// torchrun's port is one that was free, next to which somebody's connection may be.
tcp::Listener listen_at(const Master& master, double timeout_seconds,
                        const std::function<void()>& while_waiting) {
  const int port = master.port;
  const double limit = std::min(timeout_seconds, kHeldSeconds);
  bool is_told = false;
  for (WaitedTime time; tcp::is_held_by_connections(port) && time.seconds() < limit;) {
    if (!is_told) {
      log::info("rank 0 waits at most {:.0f} s until another program's connection lets go of MASTER_PORT {}",
                limit, port);
    }
    is_told = true;
    while_waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  try {
    return tcp::Listener(port);
  } catch (const CommError& error) {
    fail<CommError>("launch", "rank 0 cannot wait for the others on MASTER_PORT {} ({}): {}", port,
                    error.what(), master.other_port);
  }
}

std::string text_of(const Master& master) {
  const bool is_v6 = master.address.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", master.address, is_v6 ? "]" : "", master.port);
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

std::optional<tcp::OpenFiles> files_in(const std::string& answer) {
  if (!answer.starts_with(kFewFiles)) return std::nullopt;
  const std::vector<std::string_view> words = split_text(answer, ' ');
  const auto number = [&](size_t from_end) {
    return parse_number<int64_t>(words[words.size() - from_end]).value_or(0);
  };
  return tcp::OpenFiles{.needed = number(2), .allowed = number(1)};
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

struct MasterBootstrap::Visitor {
  tcp::Connection connection;
  WaitedTime time = WaitedTime();  ///< since it came
};

MasterBootstrap::MasterBootstrap(const Master& master, Self self, double timeout_seconds,
                                 std::function<void()> while_waiting)
    : self_(self),
      master_address_(master.address),
      timeout_seconds_(timeout_seconds),
      while_waiting_(while_waiting ? std::move(while_waiting) : [] {}) {
  self_.rank == 0 ? await_ranks(master) : find_master(master);
}

void MasterBootstrap::find_master(const Master& master) {
  std::string said;  // by somebody else
  const auto is_right = [&](tcp::Connection& connection) {
    connection.send(greeting(self_.rank, self_.size));
    const auto answer = connection.read(std::min(kAnswerSeconds, timeout_seconds_), tcp::kGreetingBytes);
    if (answer == "welcome") return true;
    if (const auto files = answer ? files_in(*answer) : std::nullopt)
      fail<CommError>("launch", "{}", tcp::missing_files_text(0, self_.size, *files, master.address));
    const bool is_silent = !answer && connection.read_available(tcp::kGreetingBytes);
    if (!is_silent) said = answer ? "'" + *answer + "'" : "nothing before the end of the connection";
    return false;
  };
  const auto refuse = [&] {
    if (said.empty()) return;  // rank 0 itself may be stopped
    fail<CommError>(
        "launch",
        "rank {} reached {} (MASTER_ADDR, MASTER_PORT), which answered {}: it must be rank 0 of the "
        "same {} ranks{}",
        self_.rank, text_of(master), said, self_.size,
        said.find(kThisIsRank0) == 1 ? "; ottava launch and torchrun need the same --nnodes and as "
                                       "many ranks on each machine"
                                     : "");
  };
  connections_.push_back(
      tcp::connect_to(fmt::format("{};;{}", master.address, master.port), timeout_seconds_,
                      {.after_each = while_waiting_, .is_right = is_right, .after_all_wrong = refuse}));
}

// With too few files for all ranks, makes the refusal that each of them gets, and returns it in words.
std::string MasterBootstrap::refuse_if_files_lack() {
  const tcp::OpenFiles files = tcp::allow_open_files(self_.size);
  if (files.allowed >= self_.size + kOwnFiles) return {};
  std::string lack = tcp::missing_files_text(0, self_.size, files, host_name("its machine"));
  refusal_ = fmt::format("{} {} {}", kFewFiles, files.needed, files.allowed);
  told_.resize(self_.size);
  log::warning("{}; each rank hears of it when it comes", lack);
  return lack;
}

void MasterBootstrap::await_ranks(const Master& master) {
  connections_.resize(self_.size);
  if (self_.size == 1) return;
  // The others hear of other lacks once all are here.
  const std::string lack = refuse_if_files_lack();
  tcp::Listener listener = listen_at(master, timeout_seconds_, while_waiting_);
  double told_at = timeout_seconds_ / kFirstToldPart;
  std::list<Visitor> visitors;
  WaitedTime time;
  while (true) {
    while_waiting_();
    const std::string missing = missing_ranks();
    const double waited = time.seconds();
    const bool is_late = waited > timeout_seconds_;
    if (!lack.empty() && (missing.empty() || is_late)) fail<CommError>("launch", "{}", lack);
    if (missing.empty()) return;
    if (is_late) {
      fail<CommError>("launch",
                      "ranks {} of {} did not connect to {} (MASTER_ADDR, MASTER_PORT) within {} s "
                      "(comm.init_timeout_seconds)",
                      missing, self_.size, text_of(master), timeout_seconds_);
    }
    if (waited >= told_at) {
      log::info("rank 0 has waited {:.0f} s of at most {} for ranks {} of {} to connect to {}", waited,
                timeout_seconds_, missing, self_.size, text_of(master));
      told_at *= 2;
    }
    receive_visitors(listener, visitors, std::min(told_at, timeout_seconds_) - waited);
  }
}

std::string MasterBootstrap::missing_ranks() const {
  std::string missing;
  for (int r = 1; r < self_.size; ++r) {
    if (refusal_.empty() ? !connections_[r].is_open() : !told_[r]) add_item(missing, std::to_string(r));
  }
  return missing;
}

void MasterBootstrap::receive_visitors(tcp::Listener& listener, std::list<Visitor>& visitors,
                                       double seconds) {
  std::vector<pollfd> watched = {
      {visitors.size() < tcp::kMostVisitors ? listener.descriptor() : -1, POLLIN, 0}};
  for (const Visitor& visitor : visitors) watched.push_back({visitor.connection.descriptor(), POLLIN, 0});
  for (const tcp::Connection& place : connections_) watched.push_back({place.descriptor(), POLLRDHUP, 0});
  if (::poll(watched.data(), watched.size(), static_cast<int>(std::min(seconds * 1000 + 1, 250.0))) < 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  // A rank that ends before all are here may come again.
  for (int r = 1; r < self_.size; ++r) {
    if (watched[1 + visitors.size() + r].revents != 0) connections_[r].close();
  }
  std::erase_if(visitors, [&](Visitor& visitor) {
    tcp::Connection& connection = visitor.connection;
    const bool is_open = connection.read_available(tcp::kGreetingBytes);
    const auto text = connection.next(tcp::kGreetingBytes);
    // A rank that has not waited for the answer comes again.
    if (text && is_open && welcome(connection, *text)) return true;
    if (!text && is_open && connection.is_open() && visitor.time.seconds() < kGreetingSeconds) return false;
    connection.send(fmt::format("{}{}", kThisIsRank0, self_.size));
    return true;
  });
  if (watched[0].revents == 0) return;
  if (tcp::Connection connection = listener.accept(); connection.is_open()) {
    visitors.push_back({std::move(connection)});
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no descriptor is left: it waits
  }
}

bool MasterBootstrap::welcome(tcp::Connection& visitor, const std::string& greeting) {
  const int rank = rank_in(greeting, self_.size);
  if (rank < 0) return false;
  if (!refusal_.empty()) {
    visitor.send(refusal_);
    told_[rank] = true;
    return true;
  }
  tcp::Connection& place = connections_[rank];
  // Of a rank that was started again, the earlier connection has closed, or is about to.
  if (place.is_open() && !closes(place, std::chrono::seconds(1))) {
    fail<CommError>("launch", "two processes claim to be rank {} of {}: each needs its own RANK", rank,
                    self_.size);
  }
  place = std::move(visitor);
  place.send("welcome");
  return true;
}

std::string MasterBootstrap::receive(int from) {
  tcp::Connection& connection = connections_[self_.rank == 0 ? from : 0];
  WaitedTime time;
  do {
    while_waiting_();
    if (auto message = connection.read(std::min(timeout_seconds_, 0.25))) return *message;
  } while (connection.is_open() && time.seconds() < timeout_seconds_);
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
