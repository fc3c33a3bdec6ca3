#include "parallel/comm/sockets/tcp_port.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/host_name.h"
#include "core/text/split.h"

namespace ottava {
namespace {

constexpr int32_t kMagic = 0x0a07a7a1;
// How much one connection may move before the others have their turn.
constexpr int64_t kTurnBytes = 8 << 20;

// How long the other rank's doorman has to answer before another address is tried.
constexpr double kAnswerSeconds = 10;
// Between two looks at the time: a name may take as long to be looked up.
constexpr std::chrono::seconds kLongestAttempt{10};

// A rank that left alone would be waited for.
void require_open_files(Bootstrap& bootstrap) {
  const int rank = bootstrap.rank(), ranks = bootstrap.size();
  const tcp::OpenFiles files = tcp::allow_open_files(ranks);
  const bool is_short = files.allowed < files.needed;
  for (const std::string& said : bootstrap.all_gather(
           is_short ? tcp::missing_files_text(rank, ranks, files, host_name("its machine")) : ""))
    if (!said.empty()) fail<CommError>("tcp", "{}", said);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

TcpPort::TcpPort(Bootstrap& bootstrap, const std::string& address, std::shared_ptr<RankState> state,
                 Options options)
    : state_(std::move(state)), options_(options), peers_(bootstrap.size()) {
  require_open_files(bootstrap);
  token_ = job_token(bootstrap);
  doorman_.emplace(Doorman::Options{.token = token_,
                                    .rank = bootstrap.rank(),
                                    .size = bootstrap.size(),
                                    .greeting_seconds = options_.greeting_seconds});
  endpoints_ = bootstrap.all_gather(fmt::format("{};{};{}", host_name(), address, doorman_->port()));
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

// A rank that has failed waits for no other, so that settling its calls does not take long. One that is
// stopped is waited for, as in every call: it takes connections, but does not answer.
void TcpPort::connect(int rank) {
  WaitedTime time(WaitedTime::Clock::now(), kLongestAttempt);
  bool is_silent = false;
  const auto check = [&] {
    if (state_->failed()) throw CommError(state_->failure());
    const bool is_late = time.seconds() > state_->timeout_seconds();
    if (is_late && is_silent) throw CommError(state_->timeout_message());
  };
  const auto is_right = [&](tcp::Connection& connection) {
    const Answer answer = answer_of(connection, rank);
    is_silent |= answer == Answer::none;
    return answer == Answer::right;
  };
  while (!peers_[rank].out.is_open()) {
    try {
      peers_[rank].out = tcp::connect_to(endpoints_[rank], options_.connect_seconds,
                                         {.after_each = check, .is_right = is_right});
    } catch (const CommError&) {
      check();
      if (!std::exchange(is_silent, false)) throw;
    }
  }
}

TcpPort::Answer TcpPort::answer_of(tcp::Connection& connection, int rank) const {
  constexpr double kLookSeconds = 0.25;
  if (!connection.send(Doorman::greeting(token_, state_->rank(), rank))) return Answer::wrong;
  const double most = std::min(kAnswerSeconds, state_->timeout_seconds());
  for (WaitedTime time; time.seconds() < most && !state_->failed();) {
    if (const auto text = connection.read(kLookSeconds, tcp::kGreetingBytes))
      return *text == Doorman::answer(token_, state_->rank(), rank) ? Answer::right : Answer::wrong;
    if (!connection.read_available(tcp::kGreetingBytes)) return Answer::wrong;
  }
  return Answer::none;
}

// Another one takes the place of one that broke before it brought anything: the other rank did not get its
// answer in time.
void TcpPort::take_connection(int rank) {
  Peer& peer = peers_[rank];
  const bool is_fresh = !peer.arriving && peer.header_bytes == 0;
  if (peer.in.is_open() && !(peer.way_in.is_closed && is_fresh)) return;
  tcp::Connection connection = doorman_->take(rank);
  if (!connection.is_open()) return;
  peer.in = std::move(connection);
  peer.way_in = {};
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
  std::erase_if(active_, [&](int rank) {
    Peer& peer = peers_[rank];
    if (!peer.sends.empty()) push(peer);
    if (!peer.receives.empty()) take_connection(rank);
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
