#include "parallel/comm/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "core/contains.h"
#include "core/error.h"
#include "core/host_name.h"
#include "core/text/listed.h"
#include "core/text/split.h"
#include "parallel/calls/waited_time.h"

namespace ottava::tcp {
namespace {

void set_option(int descriptor, int level, int option, int value) {
  ::setsockopt(descriptor, level, option, &value, sizeof value);
}

// A machine that loses power closes nothing: keep-alive finds it after about 25 s.
void configure(int descriptor) {
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
  timeval limit{2, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// If nothing listens on a port in the range of client ports, a connection to it on this machine may get that
// very port for its own end, and TCP connects it with itself. The rank that should listen there would then
// find the port taken.
bool is_with_itself(int descriptor) {
  sockaddr_storage ends[2] = {};
  socklen_t sizes[2] = {sizeof ends[0], sizeof ends[1]};
  return ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&ends[0]), &sizes[0]) == 0 &&
         ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&ends[1]), &sizes[1]) == 0 &&
         sizes[0] == sizes[1] && std::memcmp(&ends[0], &ends[1], sizes[0]) == 0;
}

struct SocketAddress {
  sockaddr_storage address{};
  socklen_t bytes = 0;
  int family() const { return address.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  std::string text() const {
    char host[NI_MAXHOST] = {};
    ::getnameinfo(get(), bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
    return host;
  }
};

// Those of IPv4 come first, whatever the resolver prefers: ranks tell others the address from which they have
// reached one, and some may have no IPv6.
std::vector<SocketAddress> addresses_of(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return {};
  std::vector<SocketAddress> addresses;
  for (const addrinfo* a = found; a; a = a->ai_next) {
    SocketAddress& address = addresses.emplace_back(SocketAddress{.bytes = a->ai_addrlen});
    std::memcpy(&address.address, a->ai_addr, a->ai_addrlen);
  }
  ::freeaddrinfo(found);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const SocketAddress& a) { return a.family() == AF_INET; });
  return addresses;
}

// Takes at most two seconds, since an address on an interface that does not lead here must not use up the
// whole time limit. Our own end may be at any free port, such as the one at which the next rank 0 is to
// listen, and without SO_REUSEADDR would keep it for a minute after it has closed (Linux 6.1).
Descriptor try_connect(const SocketAddress& address) {
  Descriptor attempt(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!attempt.is_open()) return {};
  set_option(attempt, SOL_SOCKET, SO_REUSEADDR, 1);
  bool connected = ::connect(attempt, address.get(), address.bytes) == 0;
  if (!connected && errno == EINPROGRESS) {
    pollfd wait{attempt, POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof error;
    connected = ::poll(&wait, 1, 2000) == 1 &&
                ::getsockopt(attempt, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }
  if (!connected || is_with_itself(attempt)) return {};
  ::fcntl(attempt, F_SETFL, ::fcntl(attempt, F_GETFL) & ~O_NONBLOCK);
  return attempt;
}

// Whether somebody listens at a port, whatever the address: the kernel has a line for each socket, with a
// number, its own end, the other end and the state. Nothing where there is no such list.
std::optional<bool> is_listened_at(int port) {
  constexpr std::string_view kListens = "0A";
  std::optional<bool> is_found;
  for (const char* list : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream lines(list);
    if (lines.is_open()) is_found = is_found.value_or(false);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, own, other, state;
      words >> number >> own >> other >> state;
      if (state == kListens && own.ends_with(fmt::format(":{:04X}", port))) is_found = true;
    }
  }
  return is_found;
}

// Where the host of an endpoint may be reached, in the order in which that is tried.
std::vector<std::string> hosts_of(std::string_view name, std::string_view addresses) {
  std::vector<std::string> hosts;
  if (name == host_name()) hosts.push_back("127.0.0.1");
  for (std::string_view address : split_text(addresses, ',')) {
    if (!address.empty()) hosts.emplace_back(address);
  }
  hosts.emplace_back(name);
  return hosts;
}

}  // namespace

Connection::Connection(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  if (is_open()) configure(descriptor_);
}

bool Connection::send(std::string_view message) {
  if (!is_open()) return false;
  uint32_t length = htonl(static_cast<uint32_t>(message.size()));
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += message;
  for (size_t done = 0; done < bytes.size();) {
    ssize_t sent = ::send(descriptor_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) {
      ::shutdown(descriptor_, SHUT_RDWR);
      return false;
    }
    done += sent;
  }
  return true;
}

bool Connection::read_available(size_t longest) {
  if (!is_open()) return false;
  char chunk[4096];
  const size_t most = sizeof(uint32_t) + longest;
  while (buffer_.size() < most) {
    ssize_t got = ::recv(descriptor_, chunk, std::min(sizeof chunk, most - buffer_.size()), MSG_DONTWAIT);
    if (got > 0) {
      buffer_.append(chunk, got);
    } else if (got == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

std::optional<std::string> Connection::next(size_t longest) {
  uint32_t length = 0;
  if (buffer_.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, buffer_.data(), sizeof length);
  length = ntohl(length);
  if (length > longest) {  // not one of ours
    close();
    buffer_.clear();
    return std::nullopt;
  }
  if (buffer_.size() < sizeof length + length) return std::nullopt;
  std::string message = buffer_.substr(sizeof length, length);
  buffer_.erase(0, sizeof length + length);
  return message;
}

std::optional<std::string> Connection::read(double seconds, size_t longest) {
  WaitedTime time;
  while (true) {
    if (auto message = next(longest)) return message;
    const double left = seconds - time.seconds();
    if (!is_open() || left <= 0) return std::nullopt;
    pollfd input{descriptor_, POLLIN, 0};
    const int ready = ::poll(&input, 1, static_cast<int>(std::min(left * 1000 + 1, 250.0)));
    if (ready < 0 && errno != EINTR) return std::nullopt;
    if (ready > 0 && !read_available(longest)) return next(longest);
  }
}

// Two descriptors per rank, and one for the ledgers of ranks 0 and 1: more than the usual 1024 from 250 ranks
// on. MPI takes some of its own. The files of a model, all open while its weights are read, have room beside
// them: one of 405B has 191 to 326.
OpenFiles allow_open_files(int ranks) {
  constexpr rlim_t kOfModels = 1024;
  rlimit limit{};
  const rlim_t need = static_cast<rlim_t>(ranks) * 3 + 256, wish = need + kOfModels;
  const auto result = [&](rlim_t allowed) {
    return OpenFiles{static_cast<int64_t>(need), static_cast<int64_t>(std::min(allowed, need))};
  };
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wish) return result(need);
  limit.rlim_cur = std::min(wish, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return result(limit.rlim_cur);
}

std::string missing_files_text(int rank, int ranks, const OpenFiles& files, const std::string& machine) {
  return fmt::format(
      "rank {} needs {} open files among {} ranks, but {} allows {}: raise ulimit -n there, or use MPI", rank,
      files.needed, ranks, machine, files.allowed);
}

std::optional<BoundSocket> bind_port(int port) {
  for (const int family : {AF_INET6, AF_INET}) {
    BoundSocket bound{Descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    if (!bound.descriptor.is_open()) continue;
    set_option(bound.descriptor, SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_storage storage{};
    auto* address = reinterpret_cast<sockaddr*>(&storage);
    auto* as_v4 = reinterpret_cast<sockaddr_in*>(&storage);
    auto* as_v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    const bool is_v6 = family == AF_INET6;
    storage.ss_family = static_cast<sa_family_t>(family);  // the address of all interfaces is all zeros
    if (is_v6) {
      const int no = 0;
      if (::setsockopt(bound.descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) continue;
      as_v6->sin6_port = htons(static_cast<uint16_t>(port));
    } else {
      as_v4->sin_port = htons(static_cast<uint16_t>(port));
    }
    socklen_t length = is_v6 ? sizeof *as_v6 : sizeof *as_v4;
    if (::bind(bound.descriptor, address, length) != 0) {
      if (is_v6 && errno == EADDRNOTAVAIL) continue;  // IPv6 is turned off
      return std::nullopt;
    }
    if (::getsockname(bound.descriptor, address, &length) != 0) return std::nullopt;
    bound.port = ntohs(is_v6 ? as_v6->sin6_port : as_v4->sin_port);
    return bound;
  }
  return std::nullopt;
}

bool is_held_by_connections(int port) {
  return !bind_port(port) && errno == EADDRINUSE && is_listened_at(port) == false;
}

Listener::Listener(int port) {
  std::optional<BoundSocket> bound = bind_port(port);
  if (!bound || ::listen(bound->descriptor, 1024) != 0)
    fail<CommError>("tcp", "cannot listen on port {}: {}", port, std::strerror(errno));
  socket_ = std::move(*bound);
}

Connection Listener::accept() {
  return Connection(Descriptor(::accept4(descriptor(), nullptr, nullptr, SOCK_CLOEXEC)));
}

std::string Listener::endpoint() const {
  std::string addresses;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) == 0) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (ifaddrs* i = interfaces; i; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_LOOPBACK)) continue;
        char text[INET6_ADDRSTRLEN];
        const void* address = &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr;
        if (family == AF_INET6) {
          const in6_addr& v6 = reinterpret_cast<sockaddr_in6*>(i->ifa_addr)->sin6_addr;
          if (IN6_IS_ADDR_LINKLOCAL(&v6)) continue;  // means nothing without the interface
          address = &v6;
        }
        if (::inet_ntop(family, address, text, sizeof text)) add_item(addresses, text, ",");
      }
    }
    ::freeifaddrs(interfaces);
  }
  return fmt::format("{};{};{}", host_name(), addresses, port());
}

Connection connect_to(const std::string& endpoint, double timeout_seconds, const Attempts& attempts) {
  constexpr auto kLongestRound = std::chrono::seconds(10);  // a name may take as long to be looked up
  const std::vector<std::string_view> parts = split_text(endpoint, ';');
  if (parts.size() != 3) fail<CommError>("tcp", "'{}' is not an endpoint", endpoint);
  const std::vector<std::string> hosts = hosts_of(parts[0], parts[1]);
  std::vector<std::string> wrong;
  WaitedTime time(WaitedTime::Clock::now(), kLongestRound);
  do {
    wrong.clear();
    bool are_all_wrong = true;
    for (const std::string& host : hosts) {
      for (const SocketAddress& address : addresses_of(host, std::string(parts[2]))) {
        Connection connection(try_connect(address));
        const bool is_open = connection.is_open();
        if (is_open && (!attempts.is_right || attempts.is_right(connection))) return connection;
        if (is_open && !contains(wrong, address.text())) wrong.push_back(address.text());
        are_all_wrong &= is_open;
      }
      if (attempts.after_each) attempts.after_each();
    }
    if (are_all_wrong && !wrong.empty() && attempts.after_all_wrong) attempts.after_all_wrong();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (time.seconds() < timeout_seconds);
  fail<CommError>(
      "tcp", "{} cannot be reached from {} on port {} (tried {}{}) within {} s: check names and firewall",
      parts[0], host_name(), parts[2], parts[1].empty() ? parts[0] : parts[1],
      wrong.empty() ? "" : fmt::format("; somebody else answers at {}, or nobody", fmt::join(wrong, ", ")),
      timeout_seconds);
}

}  // namespace ottava::tcp
