#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/predict/machine.h"
#include "apps/train/rank_trace.h"
#include "apps/train/step_plan.h"
#include "core/memory/input_ring.h"
#include "parallel/ranks/rank_groups.h"

namespace ottava {

/// Traces of whole steps of a run (section `profiling`): says which steps are timed, and writes a file per
/// rank and trace in the background. On a GPU, steps that are traced run one operation after the other and
/// not as graphs.
class StepTraces {
 public:
  /// Collective. Throws ConfigError or FileError, on all ranks, where the folder of traces cannot be written
  /// or profile_ranks names a rank that is not there. `planned` is record_spans() of the step.
  StepTraces(const Experiment& experiment, RankGroups& ranks, Device device, HostSpans& spans,
             std::vector<StepProfile::Span> planned);
  /// Slices say from now on how long they are planned to take on `machine`. `plan` is the step's, as it runs.
  void plan_times(const StepPlan& plan, const Machine& machine);
  /// Waits for the file that is being written.
  ~StepTraces();
  StepTraces(const StepTraces&) = delete;

  /// Collective, before every step, counted from 1; null where the step runs as it does without traces.
  /// `ring` is null but for a GPU.
  StepProfile* begin(int64_t step, Stream& stream, InputRing* ring);
  /// After it.
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
  int64_t first_call_ = 0, begin_ns_ = 0;
  std::shared_ptr<const DeviceClock> clock_;
  std::optional<StepProfile> compute_, copies_;
  std::optional<DeviceClock> copies_clock_;
  InputRing* ring_ = nullptr;  ///< whose uploads are noted
  std::future<void> writing_;
};

/// Writes the last calls of this rank (flight_record) when it fails: `folder`/`prefix`RANK.json. The rank's
/// state keeps this for its life.
void record_failures(RankState& state, const std::string& folder, const std::string& prefix);

}  // namespace ottava
