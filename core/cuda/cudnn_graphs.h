#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/cuda/attention_graph.h"

namespace ottava::cuda {

/// Whether this binary was built with cudnn-frontend's headers.
bool cudnn_is_built();
/// "cuDNN 9.19.0". Throws DeviceError without the library or the headers.
std::string cudnn_library();

/// cuDNN's handle on one GPU and graphs that are ready to run. The library is opened when the first is made,
/// where the other CUDA libraries are looked for.
class CudnnGraphs {
 public:
  /// Throws DeviceError when this binary was built without it, or the library is missing.
  explicit CudnnGraphs(int device);
  ~CudnnGraphs();
  CudnnGraphs(const CudnnGraphs&) = delete;

  /// Plans the graph; its number. Throws DeviceError with cuDNN's words when it has no kernel for it here.
  size_t add(const AttentionGraph& graph);
  int64_t workspace_bytes(size_t graph) const;
  /// `addresses` in the order of the graph's operands. Enqueues; may be captured.
  void run(Stream& stream, size_t graph, std::span<void* const> addresses, void* workspace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ottava::cuda
