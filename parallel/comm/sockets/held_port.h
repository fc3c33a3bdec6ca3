#pragma once

#include <sys/socket.h>

#include <optional>

#include "core/error.h"
#include "parallel/comm/tcp.h"

namespace ottava {

/// Holds a port of this machine on which nothing listens: the system gives it to no other process, but a
/// tcp::Listener can still ask for it by number, because it is bound with SO_REUSEADDR.
class HeldPort {
 public:
  HeldPort() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::optional<int> port = tcp::bind_port(descriptor_, 0);
    if (!port) fail<CommError>("tcp", "there is no free port");
    number_ = *port;
  }
  int number() const { return number_; }

 private:
  Descriptor descriptor_;
  int number_ = 0;
};

}  // namespace ottava
