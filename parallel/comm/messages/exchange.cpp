#include "parallel/comm/messages/exchange.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"
#include "parallel/calls/waited_time.h"

namespace ottava {
namespace {

using Clock = std::chrono::steady_clock;

// Data moves inside the port's calls (MPI through shared memory, sockets). So while data should be moving,
// polls follow one another, yielding the core in between; after that, when a peer is late, sleeping leaves
// the core to compute.
constexpr double kBytesPerSecond = 1e9;
constexpr auto kShortestSpin = std::chrono::microseconds(50);
constexpr auto kSleep = std::chrono::microseconds(50);

}  // namespace

Exchange::~Exchange() { abandon(); }

void Exchange::add(MessagePort::Ticket ticket, Expected expected) {
  tickets_.push_back(ticket);
  expected_.push_back(expected);
  if (expected.bytes < 0) {
    state_->messages().sent(expected.peer);
  } else {
    state_->messages().asked(expected.peer);
  }
  pending_bytes_ += std::max<int64_t>(expected.bytes, 0);
}

/// Calls body(begin, bytes) for messages of at most the port's size.
template <class Body>
void Exchange::for_each_piece(int64_t bytes, const Body& body) const {
  const int64_t most = port_->largest_message_bytes();
  for (int64_t begin = 0; begin < bytes; begin += most) body(begin, std::min(bytes - begin, most));
}

void Exchange::send(const void* data, int64_t bytes, int peer, int tag) {
  for_each_piece(bytes, [&](int64_t begin, int64_t piece) {
    add(port_->send(static_cast<const char*>(data) + begin, piece, peer, tag), {-1, peer});
  });
}

void Exchange::receive(void* data, int64_t bytes, int peer, int tag) {
  for_each_piece(bytes, [&](int64_t begin, int64_t piece) {
    add(port_->receive(static_cast<char*>(data) + begin, piece, peer, tag), {piece, peer});
  });
}

void Exchange::signal(int peer, int tag) { add(port_->send(nullptr, 0, peer, tag), {-1, peer}); }

void Exchange::await_signal(int peer, int tag) { add(port_->receive(nullptr, 0, peer, tag), {0, peer}); }

void Exchange::check(const MessagePort::Ended& ended) const {
  const Expected& expected = expected_[ended.index];
  if (expected.bytes < 0 || (!ended.too_long && ended.bytes == expected.bytes)) return;
  fail<CommError>(port_->name(),
                  "rank {} received {} bytes than {} from rank {} in {}: the ranks disagree about its size",
                  state_->rank(), ended.too_long ? "more" : "fewer", expected.bytes, expected.peer,
                  call_text(state_->progress()));
}

void Exchange::finish() {
  size_t left = tickets_.size();
  auto spin = std::chrono::duration<double>(pending_bytes_ / kBytesPerSecond) + kShortestSpin;
  auto ended = Clock::now();
  WaitedTime idle(ended);
  uint64_t progress = state_->progress_count();
  while (left > 0) {
    // Before anything moves: after a failure the buffers may be gone already.
    if (state_->failed()) throw CommError(state_->failure());
    ended_.clear();
    port_->test(tickets_, ended_);
    for (const MessagePort::Ended& message : ended_) {
      check(message);
      const Expected& expected = expected_[message.index];
      if (expected.bytes >= 0) state_->messages().received(expected.peer);
    }
    left -= ended_.size();
    if (!ended_.empty()) state_->note_progress();
    if (left == 0) break;
    auto now = Clock::now();
    if (!ended_.empty()) ended = now;
    const uint64_t count = state_->progress_count();
    if (std::exchange(progress, count) != count) idle.restart(now);
    if (idle.seconds(now) > state_->timeout_seconds()) throw CommError(state_->timeout_message());
    if (state_->is_awaited() || now - ended < spin) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  tickets_.clear();
  expected_.clear();
  pending_bytes_ = 0;
}

void Exchange::abandon() noexcept {
  for (size_t i = 0; i < tickets_.size(); ++i) {
    if (!tickets_[i]) continue;
    if (expected_[i].bytes < 0) {
      port_->abandon_send(tickets_[i]);
    } else {
      port_->abandon_receive(tickets_[i]);
    }
  }
  tickets_.clear();
  expected_.clear();
  pending_bytes_ = 0;
}

}  // namespace ottava
