#pragma once

#include <map>

#include "core/cuda/cudnn_graphs.h"

namespace ottava::cuda {

/// Attention by cuDNN on one GPU, in place of our kernels (AttentionForward::fused): bf16, causal, without
/// documents. With separate keys, each call's dK and dV are rounded to bf16 before they are added. A problem
/// is planned when its workspace is first asked for, as happens when a step is recorded; a call neither
/// allocates nor plans, so it may be captured.
class FusedAttention {
 public:
  /// How backward runs: with the same bits every time, or whatever way is fastest.
  enum class Backward : uint8_t { deterministic, free };
  /// Throws DeviceError if this binary was built without cuDNN or the library is missing.
  FusedAttention(int device, Backward backward) : graphs_(device), backward_(backward) {}
  Backward backward() const { return backward_; }

  /// Plans the problem if it is new, and returns its bytes of workspace. Throws DeviceError if cuDNN has no
  /// kernel for it and, once latched, for a problem that was not planned.
  int64_t workspace_bytes(const AttentionProblem& problem);
  /// Run a problem, which is planned now if it is new. Throw ShapeError for f32, for documents and for
  /// addresses that are not aligned to 16 bytes (lse: to 4); MemoryError for a workspace that is too small or
  /// not u8; DeviceError as workspace_bytes() does.
  void forward(Stream& stream, const AttentionForward& args);
  void backward(Stream& stream, const AttentionBackward& args);
  void latch() { latched_ = true; }
  size_t size() const { return planned_.size(); }

 private:
  struct Planned {
    AttentionGraph graph;
    size_t index;
  };
  const Planned& find(const AttentionProblem& problem);
  template <class Args>
  void run(Stream& stream, Pass pass, const Args& args);

  CudnnGraphs graphs_;
  Backward backward_;
  std::map<AttentionProblem, Planned> planned_;
  bool latched_ = false;
};

}  // namespace ottava::cuda
