#pragma once

#include <memory>
#include <vector>

#include "parallel/comm/messages/message_port.h"

namespace ottava {

/// Messages under way that end together. Not thread-safe: only the communication thread uses it.
class Exchange {
 public:
  Exchange(std::shared_ptr<MessagePort> port, std::shared_ptr<RankState> state)
      : port_(std::move(port)), state_(std::move(state)) {}
  /// Gives up what is under way after a failure.
  ~Exchange();
  Exchange(const Exchange&) = delete;

  /// Start a message; `peer` is a world rank. Nothing is sent for 0 bytes.
  void send(const void* data, int64_t bytes, int peer, int tag);
  void receive(void* data, int64_t bytes, int peer, int tag);
  /// The same with an empty message.
  void signal(int peer, int tag);
  void await_signal(int peer, int tag);
  /// Returns when every message has left or arrived. Throws CommError if nothing moved within the time limit,
  /// if the rank failed meanwhile, or if a message has another length than expected.
  void finish();
  void abandon() noexcept;

 private:
  struct Expected {
    int64_t bytes = -1;  ///< of a receive
    int peer = 0;
  };
  void add(MessagePort::Ticket ticket, Expected expected);
  template <class Body>
  void for_each_piece(int64_t bytes, const Body& body) const;
  void check(const MessagePort::Ended& ended) const;

  std::shared_ptr<MessagePort> port_;
  std::shared_ptr<RankState> state_;
  std::vector<MessagePort::Ticket> tickets_;
  std::vector<Expected> expected_;
  std::vector<MessagePort::Ended> ended_;
  int64_t pending_bytes_ = 0;
};

}  // namespace ottava
