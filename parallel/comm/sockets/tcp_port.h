#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/calls/waited_time.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/messages/message_port.h"
#include "parallel/comm/sockets/doorman.h"
#include "parallel/comm/tcp.h"

namespace ottava {

/// Messages over TCP, as fast as sockets are. Ranks of one machine meet on its loopback; others have to reach
/// each other's `address` or, which is tried after it, host name; an address at which another rank answers,
/// or none, is left for the next. A connection carries messages one way and is made when the first one is
/// sent. No rank waits for what another computes, and what a rank has sent arrives even if it then ends.
class TcpPort final : public MessagePort {
 public:
  struct Options {
    int64_t largest_message_bytes = int64_t{1} << 30;
    double connect_seconds = 30;
    /// How long after a connection broke with messages under way the port throws. A rank that ended by itself
    /// has said why by then, through the ledger.
    double broken_seconds = 5;
    double greeting_seconds = 10;  ///< how long a visitor has to say which rank it is
  };
  /// All ranks make theirs together. `address` is one of this machine's that the others can reach: that from
  /// which it reaches the master. Throws CommError, on all ranks, if one may not open the files that so many
  /// ranks need.
  TcpPort(Bootstrap& bootstrap, const std::string& address, std::shared_ptr<RankState> state,
          Options options);

  std::string_view name() const override { return "tcp"; }
  int largest_tag() const override { return 0x7fffffff; }
  int64_t largest_message_bytes() const override { return options_.largest_message_bytes; }
  Ticket send(const void* data, int64_t bytes, int peer, int tag) override;
  Ticket receive(void* data, int64_t bytes, int peer, int tag) override;
  void test(std::span<Ticket> tickets, std::vector<Ended>& ended) override;
  void abandon_send(Ticket ticket) noexcept override { abandon(ticket); }
  void abandon_receive(Ticket ticket) noexcept override { abandon(ticket); }

 private:
  struct Header {
    int64_t bytes = 0;
    int32_t tag = 0;
    int32_t magic = 0;
  };
  struct Message {
    char* data = nullptr;
    int64_t bytes = 0, moved = 0;
    Header header;
    int peer = 0;
    bool ended = false, too_long = false;
  };
  struct Way {
    bool is_closed = false;
    int error = 0;                      ///< why it is; 0: the peer closed it
    std::optional<WaitedTime> waiting;  ///< since messages wait on it although it is closed
  };
  struct Peer {
    tcp::Connection out, in;
    std::deque<Message*> sends, receives;  ///< that have not ended, in order
    Message* arriving = nullptr;           ///< of `receives`
    Header header;                         ///< of the next message that comes in
    size_t header_bytes = 0;
    bool is_active = false;
    Way way_out, way_in;
  };
  enum class Answer { right, wrong, none };
  Ticket add(Message message, std::deque<Message*>& queue);
  void move();
  void push(Peer& peer);
  void pull(Peer& peer);
  bool match(Peer& peer);
  /// Throws if the way has been closed for too long with messages waiting on it.
  void check(Way& way, bool has_messages, int from, int to) const;
  void take_connection(int rank);
  void connect(int rank);
  Answer answer_of(tcp::Connection& connection, int rank) const;
  void abandon(Ticket ticket) noexcept;

  std::shared_ptr<RankState> state_;
  Options options_;
  uint64_t token_ = 0;
  std::optional<Doorman> doorman_;
  std::vector<std::string> endpoints_;
  std::vector<Peer> peers_;
  std::vector<int> active_;  ///< ranks with messages that have not ended
};

}  // namespace ottava
