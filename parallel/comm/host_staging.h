#pragma once

#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// Copies of GPU tensors in pinned host memory, for transports that read host memory only. The memory grows
/// to the largest transaction and stays. Used only by the communication thread.
class HostStaging {
 public:
  explicit HostStaging(int gpu) : stream_(Stream::cuda(gpu)) {}

  /// The calls with host tensors in place of device tensors; copies what they send.
  std::vector<CollectiveCall> to_host(std::span<const CollectiveCall> calls);
  /// Copies what the staged calls received to the tensors of `calls` and waits for it.
  void to_device(std::span<const CollectiveCall> staged, std::span<const CollectiveCall> calls);

 private:
  Stream stream_;
  Buffer pinned_;
};

}  // namespace ottava
