#include "core/cuda/graph.h"

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace ottava::cuda {

void Graph::Destroy::operator()(void* executable) const noexcept { graph_destroy(executable); }

Graph Graph::record(Stream& stream, const std::function<void()>& body) {
  if (stream.type() != DeviceType::cuda) {
    fail<DeviceError>("graph", "work on {} cannot be recorded into a CUDA graph: only that of a GPU's stream",
                      to_string(stream.device()));
  }
  capture_begin(stream.native());
  try {
    body();
  } catch (...) {
    // The body's own error says more than that its capture was lost.
    try {
      graph_destroy(capture_end(stream.native()).executable);
    } catch (const DeviceError&) {
    }
    throw;
  }
  const CapturedGraph captured = capture_end(stream.native());
  Graph graph;
  graph.executable_.reset(captured.executable);
  graph.nodes_ = captured.nodes;
  return graph;
}

void Graph::launch(Stream& stream) const { graph_launch(executable_.get(), stream.native()); }

}  // namespace ottava::cuda
