#pragma once

#include <optional>
#include <utility>

#include "core/error.h"
#include "parallel/comm/tcp.h"

namespace ottava {

/// Holds a port of this machine on which nothing listens: the system gives it to no other process, but a
/// tcp::Listener can still ask for it by number, because it is bound with SO_REUSEADDR.
class HeldPort {
 public:
  /// Throws CommError if the system has no free one.
  HeldPort() {
    std::optional<tcp::BoundSocket> bound = tcp::bind_port(0);
    if (!bound) fail<CommError>("tcp", "there is no free port");
    socket_ = std::move(*bound);
  }
  int number() const { return socket_.port; }

 private:
  tcp::BoundSocket socket_;
};

}  // namespace ottava
