#pragma once

#include "apps/config/experiment.h"

namespace ottava {

/// What the run is about to do: model, parameters, memory by category, precision, data, schedule. Rank 0 logs
/// it.
void log_startup_report(const Experiment& experiment, const StepPlan& plan, Device device,
                        const RankGroups& ranks);

/// Throws MemoryError (among several ranks ConfigError, the same on all) when the plan does not fit a rank's
/// part of its device, with the largest items and the settings that shrink them. Every rank makes the call.
void require_memory(const MemoryPlan& plan, Device device, Communicator& control);

}  // namespace ottava
