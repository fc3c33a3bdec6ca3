#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/io/descriptor.h"

namespace ottava::tcp {

constexpr size_t kLongestMessage = 1 << 20;
/// Of the visitors of a listener that have not sent a greeting: how many there may be at once, and how much
/// is read of each.
constexpr size_t kMostVisitors = 64, kGreetingBytes = 64;

/// A connection that carries short text messages, each as a whole. Move-only. Several threads may send only
/// if the owner locks.
class Connection {
 public:
  Connection() = default;
  explicit Connection(Descriptor descriptor);

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_.is_open(); }
  /// Returns false if the peer is gone or takes nothing for two seconds. Both ends then find the connection
  /// closed: a message of which only a part was sent would make nonsense of all that follow.
  bool send(std::string_view message);
  /// Reads what has arrived, without blocking, until a message of `longest` bytes is certain to be whole: the
  /// rest stays with the kernel until next() has taken some. Returns false if the peer has closed or the
  /// connection broke.
  bool read_available(size_t longest = kLongestMessage);
  /// The next whole message of what was read, or nothing. One longer than `longest` ends the connection.
  std::optional<std::string> next(size_t longest = kLongestMessage);
  /// Waits for the next message, of at most `longest` bytes; nothing if none has come within the time
  /// (WaitedTime), or the peer is gone.
  std::optional<std::string> read(double seconds, size_t longest = kLongestMessage);
  void close() { descriptor_.close(); }

 private:
  Descriptor descriptor_;
  std::string buffer_;
};

struct OpenFiles {
  int64_t needed = 0, allowed = 0;  ///< by connections to other ranks
};
/// Lets this process open the files that it needs among so many ranks, and those of a model besides, or as
/// many as the machine allows.
OpenFiles allow_open_files(int ranks);
/// What `rank` of so many lacks, on which machine, and what to do, where its machine allows fewer.
std::string missing_files_text(int rank, int ranks, const OpenFiles& files, const std::string& machine);

struct BoundSocket {
  Descriptor descriptor;
  int port = 0;
};
/// A TCP socket bound to a port on all interfaces, of IPv6 and IPv4, or only of IPv4 where there is no IPv6;
/// 0: to a free port. Nothing where that fails: errno says why.
std::optional<BoundSocket> bind_port(int port);

/// Whether no program could listen on a port, though none does at any address of this machine: it is one end
/// of a connection, which keeps it for up to a minute after it has ended. False where the kernel's list
/// of sockets (/proc/net/tcp) cannot be read.
bool is_held_by_connections(int port);

/// A listening socket on a free port (or the given one). Throws CommError.
class Listener {
 public:
  explicit Listener(int port = 0);
  int descriptor() const { return socket_.descriptor; }
  int port() const { return socket_.port; }
  Connection accept();
  /// "host;address,address;port", with addresses of IPv4 before those of IPv6: what connect_to() takes, on
  /// this machine or another.
  std::string endpoint() const;

 private:
  BoundSocket socket_;
};

struct Attempts {
  /// Called after the addresses of each host that all failed; may throw to give up.
  std::function<void()> after_each = {};
  /// Asks what answers there: an address that leads to anything else is not taken.
  std::function<bool(Connection&)> is_right = {};
  /// Called when something else answers at every address; may throw to give up.
  std::function<void()> after_all_wrong = {};
};
/// Tries the loopback if the host is this one, the endpoint's addresses, then all those of its host's name,
/// of IPv4 before those of IPv6, until the time is up. Throws CommError.
Connection connect_to(const std::string& endpoint, double timeout_seconds, const Attempts& attempts = {});

}  // namespace ottava::tcp
