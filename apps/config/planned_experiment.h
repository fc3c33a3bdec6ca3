#pragma once

#include "apps/config/experiment.h"

namespace ottava {

/// An experiment for a device that need not be on this machine.
struct PlannedExperiment {
  Device device;
  Experiment experiment;
};

/// Plans for `world_size` ranks (0: the fewest that the configuration's degrees allow) with GPUs of this
/// compute capability (0: that of this machine's GPU or, without one, 90). The tokenizer may be missing; if
/// the vocabulary is not given either, it is the flavor's, with a warning. Follows
/// quantize.linear.float8.auto_decisions. Throws ConfigError, among others for a capability with
/// training.device cpu, DeviceError naming the capability, and FileError.
PlannedExperiment plan_experiment(const Config& config, int world_size = 0, int compute_capability = 0);

/// Resolves another configuration for the device of `planned` and `world_size` ranks. Throws as
/// plan_experiment() does.
Experiment resolve_planned(const Config& config, const PlannedExperiment& planned, int world_size);

}  // namespace ottava
