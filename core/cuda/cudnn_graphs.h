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

/// cuDNN's handle on one GPU, and graphs that are ready to run. The library is opened when the first of these
/// is made, and looked for where the other CUDA libraries are (SharedLibrary).
class CudnnGraphs {
 public:
  /// Throws DeviceError if this binary was built without cuDNN or the library is missing.
  explicit CudnnGraphs(int device);
  ~CudnnGraphs();
  CudnnGraphs(const CudnnGraphs&) = delete;

  /// Plans the graph and returns its number. Throws DeviceError with cuDNN's message if it has no kernel for
  /// it on this GPU.
  size_t add(const AttentionGraph& graph);
  int64_t workspace_bytes(size_t graph) const;
  /// `addresses` in the order of the graph's operands. Enqueues; may be captured.
  void run(Stream& stream, size_t graph, std::span<void* const> addresses, void* workspace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ottava::cuda
