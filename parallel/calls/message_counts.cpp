#include "parallel/calls/message_counts.h"

#include <tuple>

namespace ottava {

void MessageCounts::sent(int to) {
  std::lock_guard lock(mutex_);
  ++peers_[to].sent;
}

void MessageCounts::asked(int from) {
  std::lock_guard lock(mutex_);
  Peer& peer = peers_[from];
  if (peer.asked == peer.received) peer.since = Clock::now();
  ++peer.asked;
}

void MessageCounts::received(int from) {
  std::lock_guard lock(mutex_);
  Peer& peer = peers_[from];
  ++peer.received;
  if (peer.asked > peer.received) peer.since = Clock::now();
}

std::vector<PeerMessages> MessageCounts::counts(double awaited_seconds) const {
  std::map<std::tuple<int64_t, int64_t, bool>, std::vector<int>> ranks;
  {
    std::lock_guard lock(mutex_);
    const auto before = Clock::now() - std::chrono::duration<double>(awaited_seconds);
    for (const auto& [rank, peer] : peers_)
      ranks[{peer.sent, peer.received, peer.asked > peer.received && peer.since <= before}].push_back(rank);
  }
  std::vector<PeerMessages> out;
  for (const auto& [count, alike] : ranks) {
    const auto [sent, received, is_awaited] = count;
    for (const RankRun& run : runs_of(alike))
      out.push_back({.peers = run, .sent = sent, .received = received, .is_awaited = is_awaited});
  }
  return out;
}

}  // namespace ottava
