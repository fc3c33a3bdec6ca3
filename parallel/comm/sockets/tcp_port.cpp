#include "parallel/comm/sockets/tcp_port.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/host_name.h"
#include "core/split.h"
#include "parallel/comm/host_communicator.h"

namespace ottava {
namespace {

constexpr int32_t kMagic = 0x0a07a7a1;
// How much one connection may move before the others have their turn.
constexpr int64_t kTurnBytes = 8 << 20;

// What a connection begins with. One that was made by another rank, or for another, is closed.
struct Hello {
  uint64_t token = 0;
  int32_t from = 0, to = 0, magic = kMagic, unused = 0;
};

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

TcpPort::TcpPort(Bootstrap& bootstrap, const std::string& address, std::shared_ptr<RankState> state,
                 Options options)
    : state_(std::move(state)), options_(options), peers_(bootstrap.size()) {
  const tcp::OpenFiles files = tcp::allow_open_files(bootstrap.size());
  if (files.allowed < files.needed) {
    fail<CommError>("tcp",
                    "{} ranks need {} open files, but this machine allows {}: raise ulimit -n, or use MPI",
                    bootstrap.size(), files.needed, files.allowed);
  }
  token_ = job_token(bootstrap);
  endpoints_ = bootstrap.all_gather(fmt::format("{};{};{}", host_name(), address, listener_.port()));
}

MessagePort::Ticket TcpPort::add(Message message, std::deque<Message*>& queue) {
  auto owned = std::make_unique<Message>(message);
  Peer& peer = peers_[message.peer];
  queue.push_back(owned.get());
  if (!peer.is_active) active_.push_back(message.peer);
  peer.is_active = true;
  return owned.release();
}

MessagePort::Ticket TcpPort::send(const void* data, int64_t bytes, int rank, int tag) {
  Peer& peer = peers_[rank];
  if (!peer.out.is_open() && !peer.way_out.is_closed) connect(rank);
  // The data is only read; only receives write.
  return add({.data = const_cast<char*>(static_cast<const char*>(data)),
              .bytes = bytes,
              .header = {bytes, tag, kMagic},
              .peer = rank},
             peer.sends);
}

MessagePort::Ticket TcpPort::receive(void* data, int64_t bytes, int rank, int tag) {
  return add({.data = static_cast<char*>(data), .bytes = bytes, .header = {bytes, tag, kMagic}, .peer = rank},
             peers_[rank].receives);
}

void TcpPort::connect(int rank) {
  Peer& peer = peers_[rank];
  // All ranks connect before they move anything. If there are more than a listener's queue holds, each has to
  // accept those that wait for it, or none would get through. A rank that has failed waits for nobody: who
  // settles its calls does not wait for long.
  const auto accept = [&] {
    if (state_->failed()) throw CommError(state_->failure());
    accept_connections();
  };
  peer.out = tcp::connect_to(endpoints_[rank], options_.connect_seconds, {.after_each = accept});
  const Hello hello{token_, state_->rank(), rank};
  if (::send(peer.out.descriptor(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
    peer.way_out = {.is_closed = true, .error = errno};
}

void TcpPort::accept_connections() {
  pollfd waiting{listener_.descriptor(), POLLIN, 0};
  while (visitors_.size() < tcp::kMostVisitors && ::poll(&waiting, 1, 0) == 1) {
    tcp::Connection visitor = listener_.accept();
    if (!visitor.is_open()) break;  // no descriptor is left: it waits, and so may this
    visitors_.push_back({std::move(visitor)});
  }
  std::erase_if(visitors_, [&](Visitor& visitor) {
    Hello hello;
    const int socket = visitor.connection.descriptor();
    ssize_t got = ::recv(socket, &hello, sizeof hello, MSG_DONTWAIT | MSG_PEEK);
    const bool is_partial = got > 0 && got < static_cast<ssize_t>(sizeof hello);
    if (is_partial || (got < 0 && would_block())) return visitor.time.seconds() >= options_.greeting_seconds;
    ::recv(socket, &hello, sizeof hello, MSG_DONTWAIT);
    bool is_ours = got == sizeof hello && hello.magic == kMagic && hello.token == token_ &&
                   hello.to == state_->rank() && hello.from >= 0 && hello.from < std::ssize(peers_);
    if (is_ours) peers_[hello.from].in = std::move(visitor.connection);
    return true;
  });
}

void TcpPort::push(Peer& peer) {
  int64_t turn = 0;
  while (!peer.sends.empty() && !peer.way_out.is_closed && turn < kTurnBytes) {
    Message& message = *peer.sends.front();
    constexpr auto kHeader = static_cast<int64_t>(sizeof(Header));
    iovec parts[2];
    int count = 0;
    if (message.moved < kHeader) {
      parts[count++] = {reinterpret_cast<char*>(&message.header) + message.moved,
                        static_cast<size_t>(kHeader - message.moved)};
    }
    int64_t begin = std::max<int64_t>(message.moved - kHeader, 0);
    if (begin < message.bytes)
      parts[count++] = {message.data + begin, static_cast<size_t>(message.bytes - begin)};
    msghdr what{};
    what.msg_iov = parts;
    what.msg_iovlen = count;
    ssize_t sent = ::sendmsg(peer.out.descriptor(), &what, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (!would_block()) peer.way_out = {.is_closed = true, .error = errno};
      return;
    }
    state_->note_progress();
    message.moved += sent;
    turn += sent;
    if (message.moved < kHeader + message.bytes) return;
    message.ended = true;
    peer.sends.pop_front();
  }
}

// A message that no call has asked for yet stays in the socket. Ranks make the same calls in the same order,
// so the next message is asked for before any behind it.
bool TcpPort::match(Peer& peer) {
  auto found =
      std::ranges::find_if(peer.receives, [&](Message* m) { return m->header.tag == peer.header.tag; });
  if (found == peer.receives.end()) return false;
  peer.arriving = *found;
  peer.arriving->too_long = peer.header.bytes > peer.arriving->bytes;
  if (peer.arriving->too_long) {
    peer.arriving->ended = true;
  } else {
    peer.arriving->bytes = peer.header.bytes;
  }
  return true;
}

void TcpPort::pull(Peer& peer) {
  int64_t turn = 0;
  while (!peer.receives.empty() && !peer.way_in.is_closed && turn < kTurnBytes) {
    char* to = nullptr;
    size_t want = 0;
    if (!peer.arriving) {
      want = sizeof(Header) - peer.header_bytes;
      to = reinterpret_cast<char*>(&peer.header) + peer.header_bytes;
      if (want == 0 && !match(peer)) return;
    }
    Message* message = peer.arriving;
    if (message) {
      if (message->too_long) return;  // the call that waits for it fails
      to = message->data + message->moved;
      want = message->bytes - message->moved;
    }
    if (want > 0) {
      ssize_t got = ::recv(peer.in.descriptor(), to, want, MSG_DONTWAIT);
      if (got < 0 && would_block()) return;
      // The ledger says which rank is gone and why; until it does, the message just does not come.
      if (got <= 0) {
        peer.way_in = {.is_closed = true, .error = got < 0 ? errno : 0};
        return;
      }
      state_->note_progress();
      turn += got;
      if (message) {
        message->moved += got;
      } else {
        peer.header_bytes += got;
        if (peer.header_bytes == sizeof(Header) && peer.header.magic != kMagic) {
          fail<CommError>("tcp", "rank {} received bytes that are no message, in {}", state_->rank(),
                          call_text(state_->progress()));
        }
      }
    }
    if (message && message->moved == message->bytes) {
      message->ended = true;
      std::erase(peer.receives, message);
      peer.arriving = nullptr;
      peer.header_bytes = 0;
    }
  }
}

void TcpPort::check(Way& way, bool has_messages, int from, int to) const {
  if (!way.is_closed || !has_messages) return way.waiting.reset();
  if (!way.waiting) way.waiting.emplace();
  if (way.waiting->seconds() < options_.broken_seconds) return;
  const auto host = [&](int rank) { return split_text(endpoints_[rank], ';')[0]; };
  fail<CommError>(
      "tcp",
      "the connection rank {} -> rank {} ({} to {}) broke ({}) in {}, and for {} s no rank has said "
      "why: check the network between the two",
      from, to, host(from), host(to), way.error != 0 ? std::strerror(way.error) : "the other side closed it",
      call_text(state_->progress()), options_.broken_seconds);
}

void TcpPort::move() {
  bool awaits_visitor = std::ranges::any_of(active_, [&](int rank) {
    const Peer& peer = peers_[rank];
    return !peer.receives.empty() && !peer.in.is_open();
  });
  if (awaits_visitor) accept_connections();
  std::erase_if(active_, [&](int rank) {
    Peer& peer = peers_[rank];
    if (!peer.sends.empty()) push(peer);
    if (peer.in.is_open()) pull(peer);
    check(peer.way_out, !peer.sends.empty(), state_->rank(), rank);
    check(peer.way_in, !peer.receives.empty(), rank, state_->rank());
    peer.is_active = !peer.sends.empty() || !peer.receives.empty();
    return !peer.is_active;
  });
}

void TcpPort::test(std::span<Ticket> tickets, std::vector<Ended>& ended) {
  move();
  for (size_t i = 0; i < tickets.size(); ++i) {
    auto* message = static_cast<Message*>(tickets[i]);
    if (!message || !message->ended) continue;
    ended.push_back({i, message->bytes, message->too_long});
    if (message->too_long) continue;  // still in its queue: the peer that sees this gives up
    delete message;
    tickets[i] = nullptr;
  }
}

void TcpPort::abandon(Ticket ticket) noexcept {
  auto* message = static_cast<Message*>(ticket);
  Peer& peer = peers_[message->peer];
  // Only half of a message came, so nothing after it can be read.
  if (peer.arriving == message) peer.way_in.is_closed = true, peer.arriving = nullptr;
  if (!peer.sends.empty() && peer.sends.front() == message && message->moved > 0)
    peer.way_out.is_closed = true;
  std::erase(peer.sends, message);
  std::erase(peer.receives, message);
  delete message;
}

}  // namespace ottava
