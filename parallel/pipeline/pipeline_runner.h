#pragma once

#include <functional>
#include <map>
#include <tuple>

#include "core/memory/arena.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/pipeline/pipeline_program.h"

namespace ottava {

/// Carries out one rank's steps of a schedule: starts and waits for its transfers in order, and gives each
/// action what the stage before it made (for a backward, the stage after it).
class PipelineRunner {
 public:
  /// `pipeline`: its ranks in order.
  PipelineRunner(const PipelineShape& shape, Receives receives, Communicator& pipeline);

  /// What crosses from stage to stage: the residual stream, or its gradient.
  struct Boundary {
    DType dtype = DType::f32;
    Shape shape;
  };
  /// Computes the action. `in` is absent for W, for F of the first stage and for backward of the last. The
  /// result is absent for W, for F of the last stage and for backward of the first.
  using Work = std::function<Allocation(const Action&, Allocation in)>;
  /// One step. Throws what `work` throws, and CommError.
  void run(Stream& stream, Arena& arena, const Boundary& boundary, const Work& work);
  /// Only the forwards of one micro-batch.
  void run_forward(Stream& stream, Arena& arena, const Boundary& boundary, const Work& work);

 private:
  /// Stage that made it, micro-batch, whether it is a gradient.
  using Key = std::tuple<int, int, bool>;
  struct UnderWay {
    Request request;
    Allocation memory;
  };
  Allocation take(const Key& key);
  void run_action(const Action& action, const Work& work);
  UnderWay start_send(Stream& stream, const StageTransfer& transfer);
  UnderWay start_recv(Stream& stream, Arena& arena, const Boundary& boundary, const StageTransfer& transfer);

  PipelineSchedule schedule_;
  PipelineProgram program_;
  Communicator& pipeline_;
  std::map<Key, Allocation> held_;  ///< made or received, and not yet read or sent
};

}  // namespace ottava
