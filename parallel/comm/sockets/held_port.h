#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/error.h"

namespace ottava {

/// A port of this machine on which nothing listens and that the system gives to no other process, while a
/// tcp::Listener can still ask for it by its number: it is bound, with SO_REUSEADDR.
class HeldPort {
 public:
  HeldPort() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    ::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(descriptor_, generic, length) != 0 || ::getsockname(descriptor_, generic, &length) != 0) {
      ::close(descriptor_);
      fail<CommError>("tcp", "there is no free port");
    }
    number_ = ntohs(address.sin_port);
  }
  HeldPort(const HeldPort&) = delete;
  ~HeldPort() { ::close(descriptor_); }

  int number() const { return number_; }

 private:
  int descriptor_, number_ = 0;
};

}  // namespace ottava
