#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace ottava {

/// What crosses from one stage to a neighbour on another rank: the residual stream after F, its gradient
/// after B or I.
struct StageTransfer {
  int from = 0, to = 0;  ///< ranks of the pipeline
  int stage = 0;         ///< that made it; the reader is stage + 1, for a gradient stage - 1
  int micro_batch = 0;
  bool is_gradient = false;
  bool operator==(const StageTransfer&) const = default;
};

/// What a rank's host does next.
struct PipelineStep {
  enum class Kind : uint8_t {
    send,  ///< starts sending what an action before it made
    recv,  ///< starts receiving what an action after it reads
    wait,  ///< for a transfer: what was received is read next; memory of what was sent is freed
    run,
  };
  Kind kind = Kind::run;
  int64_t transfer = -1;  ///< into PipelineProgram::transfers
  Action action = {};
};

/// A schedule with its transfers. Every rank starts its transfers in the order of `transfers`, which is the
/// order in which a simulated run of the schedule makes them. Nothing hangs, even where a rank carries out
/// one call after another and a send ends only when it is received: of all transfers that have not ended, the
/// first in this order can always go on, since both of its ranks started it before any later one.
struct PipelineProgram {
  std::vector<StageTransfer> transfers;
  std::vector<std::vector<PipelineStep>> ranks;
};

/// When a receive is started. `early`: one action ahead of its reader, so that it hides behind that action.
/// `late`: just before its reader, for where a waiting receive would hold up the calls of the action in
/// between, such as tensor parallel calls in the same lane (parallel/comm/lane.h).
enum class Receives : uint8_t { early, late };

/// The transfers of a schedule and the steps of every rank. Memory of what is sent is freed at a point where
/// the simulated run ended the transfer long before.
PipelineProgram make_program(const PipelineSchedule& schedule, Receives receives);

}  // namespace ottava
