#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "parallel/calls/progress_record.h"

namespace ottava {

/// Counts the messages between this rank and each other, so that a verdict can name the connection on which
/// one is missing. Safe to use from several threads.
class MessageCounts {
 public:
  /// A message was handed to the transport.
  void sent(int to);
  /// A message is asked for, and has come.
  void asked(int from);
  void received(int from);
  /// The counts, ranks with equal ones together. A message is awaited if it was asked for and none came from
  /// its sender for so many seconds.
  std::vector<PeerMessages> counts(double awaited_seconds) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int64_t sent = 0, asked = 0, received = 0;
    Clock::time_point since = {};  ///< when the last came, or the first of those now asked for was asked for
  };
  mutable std::mutex mutex_;
  std::map<int, Peer> peers_;
};

}  // namespace ottava
