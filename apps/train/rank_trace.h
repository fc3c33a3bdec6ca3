#pragma once

#include <string>
#include <vector>

#include "core/trace/chrome_trace.h"
#include "core/trace/host_spans.h"
#include "core/trace/step_profile.h"
#include "core/trace/time_split.h"
#include "parallel/calls/flight_recorder.h"
#include "parallel/comm/clock_offset.h"

namespace ottava {

/// What one rank knows about some consecutive steps. Times are on its own steady clock.
struct TracedSteps {
  ChromeTrace::Rank rank;
  std::string host;
  int64_t origin_ns = 0;  ///< where the timeline of all ranks begins, on rank 0's clock
  int64_t origin_unix_ns = 0;
  ClockOffset clock;
  struct Step {
    int64_t number = 0, begin_ns = 0, end_ns = 0;
    std::vector<StepProfile::Span> compute, copies;
  };
  std::vector<Step> steps;
  std::vector<StepProfile::Span> planned;  ///< of one step, recorded on `meta`
  std::vector<double> planned_seconds;     ///< of each planned span; empty if the device is not known
  struct PlannedCall {
    std::string axis, label;
    double seconds = 0;
  };
  std::vector<PlannedCall> planned_calls;  ///< of one step, in order; empty if the device is not known
  std::vector<CallRecord> calls;
  int64_t lost_calls = 0;  ///< of the steps, and not among `calls`: they are no longer kept
  std::vector<HostSpans::Span> host_spans;
};

/// Where the time of all steps went: compute is operations without their waits, communication is calls
/// between ranks from beginning to end.
TimeSplit split_of(const TracedSteps& traced);

/// The trace file: tracks host, data, compute, one per mesh axis, copies, saves. As in PyTorch's traces,
/// operations and calls have category `kernel` and args.stream, and calls have names by which tools recognise
/// communication; steps, micro-batches and blocks are `user_annotation`. Slices of operations and calls say
/// what was planned for them, and if the device is known also "planned us". They are matched with the plan by
/// their order; where labels differ nothing is said, and for operations the file's `ottava.planned` is false.
/// `ottava.is_cut` is true past 50 MB, where operations are left out, and if calls were lost.
std::string trace_text(const TracedSteps& traced);

}  // namespace ottava
