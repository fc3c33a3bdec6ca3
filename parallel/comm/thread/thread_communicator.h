#pragma once

#include <functional>

#include "parallel/comm/host_communicator.h"

namespace ottava {

/// Runs body(world) on `ranks` threads of this process, one rank each, and returns when all have ended.
/// Serves tests, sanitizers and single-machine runs: the ranks share memory, never globals (the log apart).
///
/// When a rank throws, the calls of all other ranks throw CommError naming it, and after all have ended its
/// exception is thrown here (the first, when several fail). Buffers of calls in flight must outlive the
/// calls, also while an exception unwinds: keep them outside `body`, wait, or destroy the communicator first.
struct ThreadRanks {
  int ranks = 1;
  double timeout_seconds = 300;
  int threads_per_rank = 1;  ///< for parallel_for
  /// What stands between a rank's communicators and their transport, if anything: tests make it slow.
  std::function<std::shared_ptr<HostTransport>(std::shared_ptr<HostTransport>)> wrap = {};
};
void run_thread_ranks(const ThreadRanks& options, const std::function<void(Communicator& world)>& body);

}  // namespace ottava
