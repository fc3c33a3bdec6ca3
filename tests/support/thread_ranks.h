#pragma once

#include <functional>
#include <optional>

#include "parallel/comm/messages/host_communicator.h"

namespace ottava::test {

/// The way by which a rank's messages leave, one after the other.
struct Link {
  double latency_seconds = 0, bytes_per_second = 0;
  double seconds(int64_t bytes) const { return static_cast<double>(bytes) / bytes_per_second; }
};

/// Ranks as threads of this process, over the collectives that MPI and TCP use.
struct ThreadRanks {
  int ranks = 1;
  double timeout_seconds = 300;
  int threads_per_rank = 1;  ///< for parallel_for
  /// How long a message of so many bytes is under way, in seconds; if none is given, it arrives at once.
  /// Called by all ranks at the same time.
  std::function<double(int64_t bytes)> delay = {};
  std::optional<Link> link = {};  ///< in place of `delay`
  int64_t largest_message_bytes = int64_t{1} << 30;
  int64_t workspace_bytes = kMessageWorkspaceBytes;
};

/// Runs body(world), one rank in each thread, and returns when all have ended.
///
/// When a rank throws, the calls of all other ranks throw CommError naming it, and after all have ended its
/// exception is thrown here (the first, when several fail). Buffers of calls in flight must outlive the
/// calls, also while an exception unwinds: keep them outside `body`, wait, or destroy the communicator first.
void run_thread_ranks(const ThreadRanks& options, const std::function<void(Communicator& world)>& body);

}  // namespace ottava::test
