#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/calls/rank_state.h"

namespace ottava {

/// Sends and receives messages between processes without blocking: what a transport needs from MPI or from
/// sockets. A peer is a world rank, never the rank itself. Messages between two ranks arrive in the order in
/// which they were sent; receives take them in that order, and a receive takes only a message with its tag.
/// Used by one thread. Functions throw CommError.
class MessagePort {
 public:
  virtual ~MessagePort() = default;
  virtual std::string_view name() const = 0;
  virtual int largest_tag() const = 0;
  virtual int64_t largest_message_bytes() const = 0;

  /// A message under way; null: none. The buffer belongs to the port until the ticket has ended or was
  /// abandoned.
  using Ticket = void*;
  virtual Ticket send(const void* data, int64_t bytes, int peer, int tag) = 0;
  virtual Ticket receive(void* data, int64_t bytes, int peer, int tag) = 0;

  struct Ended {
    size_t index = 0;       ///< in `tickets`
    int64_t bytes = 0;      ///< that a receive got
    bool too_long = false;  ///< the message was longer than the receive
  };
  /// Moves what can be moved, for all messages under way. Appends to `ended` those of `tickets` that have
  /// ended, and sets these to null.
  virtual void test(std::span<Ticket> tickets, std::vector<Ended>& ended) = 0;
  /// After a failure: frees the buffer; the message may or may not have left.
  virtual void abandon_send(Ticket ticket) noexcept = 0;
  virtual void abandon_receive(Ticket ticket) noexcept = 0;
};

}  // namespace ottava
