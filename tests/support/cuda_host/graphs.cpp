#include "graphs.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "execution.h"
#include "sanitizer.h"

namespace ottava::cuda_host {
namespace {

thread_local std::shared_ptr<Capture> capturing;  // what this thread has begun

/// An instantiated graph: a stream for each lane.
struct Executable {
  std::shared_ptr<const Capture> graph;
  std::vector<bool> is_waited_for;  ///< by node: another lane's work comes after it
  std::vector<Stream*> lanes;
  Stream* launched_on = nullptr;
  int under_way = 0;  ///< launches
};

/// One launch under way.
struct Launch {
  explicit Launch(size_t nodes) : done(nodes, false), order(std::make_unique<char[]>(8 * (nodes + 2))) {}
  std::vector<bool> done;
  size_t lanes_left = 0;
  bool has_begun = false;
  std::unique_ptr<char[]> order;  ///< by node; then begin and every lane's end
  char* order_of(size_t node) { return order.get() + 8 * node; }
  char* begin() { return order_of(done.size()); }
  char* ends() { return order_of(done.size() + 1); }
};

cudaError_t lose(Capture& capture, std::string fault) {
  if (capture.fault.empty()) capture.fault = std::move(fault);
  explain("the capture is lost: %s", capture.fault.c_str());
  return cudaErrorStreamCaptureUnsupported;
}

// Everything that precedes the end of the lane.
std::vector<bool> ancestors(const Capture& capture, const Capture::Lane& lane) {
  std::vector<int> previous(capture.nodes.size(), -1), last(capture.lanes.size(), -1);
  for (size_t n = 0; n < capture.nodes.size(); ++n) {
    int& before = last[static_cast<size_t>(capture.nodes[n].lane)];
    previous[n] = std::exchange(before, static_cast<int>(n));
  }
  std::vector<bool> reached(capture.nodes.size(), false);
  std::vector<int> open = lane.after;
  open.push_back(lane.last);
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    if (node < 0 || reached[static_cast<size_t>(node)]) continue;
    reached[static_cast<size_t>(node)] = true;
    open.push_back(previous[static_cast<size_t>(node)]);
    const std::vector<int>& after = capture.nodes[static_cast<size_t>(node)].after;
    open.insert(open.end(), after.begin(), after.end());
  }
  return reached;
}

void enqueue_wait(Executable& exec, Stream& lane, const std::vector<int>& after,
                  const std::shared_ptr<Launch>& launch) {
  auto pending = [launch, after] {
    auto it = std::find_if(after.begin(), after.end(),
                           [&](int n) { return !launch->done[static_cast<size_t>(n)]; });
    return it == after.end() ? -1 : *it;
  };
  enqueue(lane,
          {.run =
               [launch, after](Stream& s) {
                 as_identity(s.identity, [&] {
                   for (int n : after) acquire(launch->order_of(static_cast<size_t>(n)));
                 });
                 return cudaSuccess;
               },
           .ready = [pending] { return pending() < 0; },
           .waits_for = [pending, &exec]() -> Stream* {
             const int node = pending();
             return node < 0
                        ? nullptr
                        : exec.lanes[static_cast<size_t>(exec.graph->nodes[static_cast<size_t>(node)].lane)];
           }});
}

void launch_on(Executable& exec, Stream& stream) {
  const std::vector<CapturedNode>& nodes = exec.graph->nodes;
  auto launch = std::make_shared<Launch>(nodes.size());
  launch->lanes_left = exec.lanes.size();
  exec.launched_on = &stream;
  exec.under_way++;
  enqueue(stream, {[launch](Stream& s) {
            as_identity(s.identity, [&] { release(launch->begin()); });
            launch->has_begun = true;
            return cudaSuccess;
          }});
  for (Stream* lane : exec.lanes) {
    enqueue(*lane, {.run =
                        [launch](Stream& s) {
                          as_identity(s.identity, [&] { acquire(launch->begin()); });
                          return cudaSuccess;
                        },
                    .ready = [launch] { return launch->has_begun; },
                    .waits_for = [&stream] { return &stream; }});
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    Stream& lane = *exec.lanes[static_cast<size_t>(nodes[n].lane)];
    if (!nodes[n].after.empty()) enqueue_wait(exec, lane, nodes[n].after, launch);
    nodes[n].emit(lane);
    if (!exec.is_waited_for[n]) continue;
    enqueue(lane, {[launch, n](Stream& s) {
              as_identity(s.identity, [&] { release(launch->order_of(n)); });
              launch->done[n] = true;
              return cudaSuccess;
            }});
  }
  for (Stream* lane : exec.lanes) {
    enqueue(*lane, {[launch](Stream& s) {
      as_identity(s.identity, [&] { release(launch->ends()); });
      launch->lanes_left--;
      return report(s);
    }});
  }
  enqueue(stream, {.run =
                       [launch, &exec](Stream& s) {
                         as_identity(s.identity, [&] { acquire(launch->ends()); });
                         exec.under_way--;
                         cudaError_t first = cudaSuccess;
                         for (Stream* lane : exec.lanes) {
                           if (first == cudaSuccess) first = report(*lane);
                           lane->error = cudaSuccess;
                         }
                         return first;
                       },
                   .ready = [launch] { return launch->lanes_left == 0; },
                   .waits_for = [&exec]() -> Stream* {
                     for (Stream* lane : exec.lanes) {
                       if (!is_idle(*lane)) return lane;
                     }
                     return nullptr;
                   }});
}

}  // namespace

cudaError_t submit(Stream& stream, Emit emit) {
  if (!stream.capture) {
    emit(stream);
    return cudaSuccess;
  }
  Capture& capture = *stream.capture;
  if (!capture.fault.empty()) return lose(capture, "");
  Capture::Lane& lane = capture.lanes[static_cast<size_t>(stream.lane)];
  lane.last = static_cast<int>(capture.nodes.size());
  capture.nodes.push_back({std::move(emit), stream.lane, std::exchange(lane.after, {})});
  return cudaSuccess;
}

cudaError_t forbid_in_capture(const char* call, const Stream* stream, const Event* event) {
  if (cudaError_t status = require_chosen_gpu(call)) return status;
  if (capturing) return lose(*capturing, std::string(call) + " while a stream is captured");
  if (stream && stream->capture)
    return lose(*stream->capture, std::string(call) + " of a stream that is captured");
  if (event && event->capture) {
    explain("%s of an event that was recorded into a graph", call);
    return cudaErrorCapturedEvent;
  }
  return cudaSuccess;
}

std::vector<int> captured_before(const Stream& stream) {
  const Capture::Lane& lane = stream.capture->lanes[static_cast<size_t>(stream.lane)];
  std::vector<int> nodes = lane.after;
  if (lane.last >= 0) nodes.push_back(lane.last);
  return nodes;
}

cudaError_t wait_in_capture(Stream& stream, const Event& event) {
  if (!event.capture)
    return lose(*stream.capture,
                "a captured stream waits for an event that was recorded outside the capture");
  if (event.capture->has_ended) {
    explain("an event that was recorded into a graph is waited for after the capture");
    return cudaErrorCapturedEvent;
  }
  if (stream.capture && stream.capture != event.capture)
    return lose(*stream.capture, "one capture waits for another");
  Capture& capture = *event.capture;
  if (!stream.capture) {
    stream.capture = event.capture;
    stream.lane = static_cast<int>(capture.lanes.size());
    capture.lanes.emplace_back().priority = stream.priority;
  }
  std::vector<int>& after = capture.lanes[static_cast<size_t>(stream.lane)].after;
  after.insert(after.end(), event.after.begin(), event.after.end());
  return cudaSuccess;
}

}  // namespace ottava::cuda_host

using namespace ottava::cuda_host;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (mode != cudaStreamCaptureModeThreadLocal) {
    explain("captures are thread-local: other threads go on using CUDA");
    return cudaErrorInvalidValue;
  }
  if (capturing) return lose(*capturing, "a second capture on one thread");
  if (stream->capture) return lose(*stream->capture, "a capture of a stream that is captured");
  capturing = std::make_shared<Capture>();
  capturing->origin = stream;
  capturing->gpu = stream->gpu;
  capturing->lanes.emplace_back();
  stream->capture = capturing;
  stream->lane = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  auto lock = lock_layer();
  *graph = nullptr;
  Stream* stream = find_stream(handle);
  if (!stream || !capturing || capturing->origin != stream) {
    explain("the capture of this stream was not begun by this thread");
    return cudaErrorStreamCaptureUnmatched;
  }
  const std::shared_ptr<Capture> capture = std::exchange(capturing, nullptr);
  capture->has_ended = true;
  const std::vector<bool> joined = ancestors(*capture, capture->lanes[0]);
  leave_capture(*capture);
  // Events that were recorded meanwhile know the capture for as long as they live: the work is the graph's.
  const auto recorded = std::make_shared<const Capture>(std::move(*capture));
  if (!recorded->fault.empty()) {
    explain("the capture is lost: %s", recorded->fault.c_str());
    return cudaErrorStreamCaptureInvalidated;
  }
  if (std::find(joined.begin(), joined.end(), false) != joined.end()) {
    explain(
        "the capture ends while another stream has captured work that the first stream does not wait for");
    return cudaErrorStreamCaptureUnjoined;
  }
  *graph = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<const Capture>(recorded));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  auto lock = lock_layer();
  Stream* stream = find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  *status = !stream->capture                 ? cudaStreamCaptureStatusNone
            : stream->capture->fault.empty() ? cudaStreamCaptureStatusActive
                                             : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  auto lock = lock_layer();
  *count = (*reinterpret_cast<std::shared_ptr<const Capture>*>(graph))->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  auto lock = lock_layer();
  if (cudaError_t status = forbid_in_capture("cudaGraphInstantiate")) return status;
  auto* exec = new Executable{*reinterpret_cast<std::shared_ptr<const Capture>*>(graph), {}, {}};
  exec->is_waited_for.resize(exec->graph->nodes.size());
  for (const CapturedNode& node : exec->graph->nodes) {
    for (int n : node.after) exec->is_waited_for[static_cast<size_t>(n)] = true;
  }
  const int gpu = std::exchange(current_gpu(), exec->graph->gpu);
  for (const Capture::Lane& lane : exec->graph->lanes) {
    exec->lanes.push_back(create_stream());
    if (flags == cudaGraphInstantiateFlagUseNodePriority) exec->lanes.back()->priority = lane.priority;
  }
  current_gpu() = gpu;
  *out = reinterpret_cast<cudaGraphExec_t>(exec);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on) {
  auto lock = lock_layer();
  Stream* stream = find_stream(on);
  auto* exec = reinterpret_cast<Executable*>(handle);
  if (!stream || stream->gpu != exec->graph->gpu) return cudaErrorInvalidResourceHandle;
  if (stream->capture) return lose(*stream->capture, "a graph is launched into a capture");
  launch_on(*exec, *stream);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  auto lock = lock_layer();
  delete reinterpret_cast<std::shared_ptr<const Capture>*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  insist_on_chosen_gpu("cudaGraphExecDestroy");
  auto lock = lock_layer();
  auto* exec = reinterpret_cast<Executable*>(handle);
  const cudaError_t status = run_until(lock, exec->launched_on, [&] { return exec->under_way == 0; });
  for (Stream* lane : exec->lanes) destroy_stream(lane);
  delete exec;
  return status;
}

}  // extern "C"
