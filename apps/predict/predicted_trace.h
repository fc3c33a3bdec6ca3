#pragma once

#include <span>
#include <string>

#include "apps/predict/step_time.h"

namespace ottava {

/// The step as replay() has it, in the form of a run's own traces (apps/train/rank_trace.h), so that both
/// open side by side: tracks compute and one per mesh axis; operations with planned microseconds, FLOPs and
/// bytes, transfers, waits. Ranks of a pipeline (sample_roles()) are processes of one timeline, called
/// "`name`, stage rank 1".
std::string predicted_trace(std::span<const StepPlan> roles, const Machine& machine, const std::string& name);

}  // namespace ottava
