#pragma once

#include <span>
#include <string>

#include "apps/predict/step_time.h"

namespace ottava {

/// The step as replayed by replay(), in the format of a run's own traces (apps/train/rank_trace.h), so that
/// both can be opened side by side. It has a track for compute and one per mesh axis, with operations
/// (planned microseconds, FLOPs and bytes), transfers and waits. Ranks of a pipeline
/// (sample_first_of_roles()) are processes of one timeline, called "`name`, stage rank 1".
std::string predicted_trace(std::span<const StepPlan> roles, const Machine& machine, const std::string& name);

}  // namespace ottava
