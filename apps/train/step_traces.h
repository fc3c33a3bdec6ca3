#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/predict/machine.h"
#include "apps/step/step_plan.h"
#include "apps/train/rank_trace.h"
#include "core/memory/input_ring.h"
#include "core/threads/background_work.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// Traces of whole steps of a run (section `profiling`): decides which steps are timed, and writes one file
/// per rank and trace in the background. On a GPU, traced steps run one operation after the other, not as
/// graphs.
class StepTraces {
 public:
  /// Collective. Throws on all ranks: FileError if the folder of traces cannot be written, ConfigError if
  /// profile_ranks names a rank that does not exist. `planned` is record_spans() of the step.
  StepTraces(const Experiment& experiment, RankGroups& ranks, Device device, HostSpans& spans,
             std::vector<StepProfile::Span> planned);
  /// From now on slices say how long they are planned to take on `machine`. `plan` is that of the step as it
  /// runs.
  void plan_times(const StepPlan& plan, const Machine& machine);
  /// Waits for the file that is being written.
  ~StepTraces();
  StepTraces(const StepTraces&) = delete;

  /// Collective, before every step, counted from 1. Returns null if the step runs as without traces. `ring`
  /// is null unless on a GPU.
  StepProfile* begin(int64_t step, Stream& stream, InputRing* ring);
  /// To be called after the step.
  void end(int64_t step);

 private:
  bool traces(int rank, const std::vector<std::string>& hosts) const;
  void write(int64_t step);

  ProfilingConfig config_;
  RankGroups& ranks_;
  Device device_;
  HostSpans& spans_;
  std::string folder_;
  bool is_traced_ = false;  ///< this rank
  bool is_open_ = false;    ///< a trace has begun, on all ranks
  TracedSteps now_;
  int64_t kept_calls_ = 0;  ///< comm.trace_buf_size
  int64_t first_call_ = 0, begin_ns_ = 0;
  std::shared_ptr<const DeviceClock> clock_;
  std::optional<StepProfile> compute_, copies_;
  std::optional<DeviceClock> copies_clock_;
  InputRing* ring_ = nullptr;  ///< whose uploads are noted
  BackgroundWork writing_{"a trace"};
};

/// Makes a rank that fails write its last calls (flight_record()) to `folder`/`prefix`RANK.json. Holds for
/// the life of the rank's state.
void record_failures(RankState& state, const std::string& folder, const std::string& prefix);

}  // namespace ottava
