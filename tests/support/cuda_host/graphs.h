#pragma once

#include <driver_types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "streams.h"

// CUDA graphs: work of streams that is recorded instead of done. Every stream of a capture becomes a lane of
// the graph; a launch gives the lanes their work again, each on a stream of its own, ordered by what the
// events said and nothing else.
namespace ottava::cuda_host {

/// Puts work on a stream: at once or, while the stream is captured, each time that the graph is launched.
using Emit = std::function<void(Stream& on)>;

struct CapturedNode {
  Emit emit;
  int lane;
  std::vector<int> after;  ///< nodes of other lanes
};

struct Capture {
  const Stream* origin = nullptr;
  int gpu = 0;
  std::vector<CapturedNode> nodes;
  struct Lane {
    int last = -1;           ///< node
    std::vector<int> after;  ///< what the next node waits for besides
    int priority = 0;        ///< the stream's
  };
  std::vector<Lane> lanes;
  std::string fault;  ///< why it cannot become a graph
  bool has_ended = false;
};

/// The layer's lock must be held, as for everything here.
cudaError_t submit(Stream& stream, Emit emit);
/// Refuses calls that the thread must not make while it captures, or that ask about work that is captured and
/// never runs; the capture is then lost.
cudaError_t forbid_in_capture(const char* call, const Stream* stream = nullptr, const Event* event = nullptr);
/// The nodes that an event recorded on the stream stands for.
std::vector<int> captured_before(const Stream& stream);
/// cudaStreamWaitEvent where the stream or the event is part of a capture.
cudaError_t wait_in_capture(Stream& stream, const Event& event);

}  // namespace ottava::cuda_host
