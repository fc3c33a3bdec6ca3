#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/io/descriptor.h"

namespace ottava::tcp {

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
  /// Reads what has arrived, without blocking, until the longest message is certain to be whole: the rest
  /// stays with the kernel until next() has taken some. Returns false if the peer has closed or the
  /// connection broke.
  bool read_available();
  /// The next whole message of what was read, or nothing.
  std::optional<std::string> next();
  void close() { descriptor_.close(); }

 private:
  Descriptor descriptor_;
  std::string buffer_;
};

struct OpenFiles {
  int64_t needed = 0, allowed = 0;
};
/// Lets this process open the files that it needs among so many ranks, or as many as the machine allows.
OpenFiles allow_open_files(int ranks);

/// Binds a TCP socket to a port on all interfaces; 0: to a free one. Returns the port, or nothing and sets
/// errno.
std::optional<int> bind_port(int descriptor, int port);

/// A listening socket on a free port (or the given one). Throws CommError.
class Listener {
 public:
  explicit Listener(int port = 0);
  int descriptor() const { return descriptor_; }
  int port() const { return port_; }
  Connection accept();
  /// "host;address,address;port": what connect_to() takes, on this machine or another.
  std::string endpoint() const;

 private:
  Descriptor descriptor_;
  int port_ = 0;
};

/// Tries the endpoint's addresses until the deadline, calling `between_attempts` (may be null) after each
/// failure, which may throw to give up. Throws CommError.
Connection connect_to(const std::string& endpoint, double timeout_seconds,
                      const std::function<void()>& between_attempts = nullptr);

}  // namespace ottava::tcp
