#pragma once

#include "apps/config/experiment.h"

namespace ottava {

/// An experiment for a device that need not be on this machine.
struct PlannedExperiment {
  Device device;
  Experiment experiment;
};

/// For `world_size` ranks (0: the fewest that the configuration's degrees make) with GPUs of this compute
/// capability (0: of the one in this machine or, where there is none, 90). The tokenizer may be missing:
/// where the vocabulary is not given either, it is the flavor's, and a warning says so. Follows
/// quantize.linear.float8.auto_decisions. Throws ConfigError, for one for a capability where training.device
/// is cpu, and DeviceError naming the capability.
PlannedExperiment plan_experiment(const Config& config, int world_size = 0, int compute_capability = 0);

/// Another configuration for the device of `planned` and so many ranks. Throws ConfigError.
Experiment resolve_planned(const Config& config, const PlannedExperiment& planned, int world_size);

}  // namespace ottava
