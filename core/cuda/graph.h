#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "core/stream.h"

namespace ottava::cuda {

/// A stream's work, recorded once and carried out again by one launch: the same kernels, copies and
/// collectives on the same addresses, without the host code that enqueued them. A stream that waits for one
/// of this stream's events during the recording, and is waited for before its end, is included. Move-only.
///
/// Recorded work runs as often as the graph is launched, so it may not depend on what the host decides
/// meanwhile: memory is at fixed addresses, numbers that change are in device memory, and nothing allocates
/// or waits.
class Graph {
 public:
  /// Records what body() puts on the stream, without doing any of it. Throws DeviceError, saying what cannot
  /// be recorded, and whatever body throws; the stream is usable afterwards.
  static Graph record(Stream& stream, const std::function<void()>& body);

  bool is_recorded() const { return static_cast<bool>(executable_); }
  /// Number of kernels, copies and collectives.
  size_t nodes() const { return nodes_; }
  /// Enqueues everything once. Not before is_recorded().
  void launch(Stream& stream) const;

 private:
  struct Destroy {
    void operator()(void* executable) const noexcept;
  };
  std::unique_ptr<void, Destroy> executable_;
  size_t nodes_ = 0;
};

}  // namespace ottava::cuda
