#pragma once

#include <memory>
#include <vector>

#include "apps/config/training_shape.h"
#include "apps/step/step_io.h"
#include "core/memory/input_ring.h"

namespace ottava {

/// Where a rank's micro-batches lie on its device, all i32: tokens, targets, document starts, and positions
/// where documents are kept apart or ranks share sequences. Every micro-batch is computed from the same
/// place, so that a CUDA graph of one serves another. In a pipeline, which has several at a time, each
/// micro-batch of a step has a place of its own.
class MicroBatchInputs {
 public:
  /// Takes persistent memory.
  MicroBatchInputs(const TrainingShape& shape, Stream& stream, Arena& arena, int context_parallel);

  /// On a GPU, starts the upload of the micro-batch at `index`; each has `count` of the host's tokens.
  void send(const HostTokens& tokens, int64_t index, int64_t count);
  /// The micro-batch at its place.
  MicroBatch receive(const HostTokens& tokens, int64_t index, const RankRows& rows);
  /// Null unless on a GPU.
  InputRing* ring() { return ring_.get(); }

 private:
  Stream& stream_;
  bool holds_all_;  ///< all micro-batches of a step have places
  std::vector<Tensor> places_;
  std::unique_ptr<InputRing> ring_;
};

}  // namespace ottava
