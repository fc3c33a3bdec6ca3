#pragma once

#include <string>

#include "apps/config/experiment.h"

namespace ottava {

/// Why cuDNN's attention cannot compute this step on any GPU; empty if nothing speaks against it.
std::string objection_to_cudnn(const Experiment& experiment);

/// Throws ConfigError if attention.backend is cudnn, which the device or the step excludes; in a run all of
/// its `ranks` call it, and do so once all know.
void require_possible_attention(const Experiment& experiment, Device device, Communicator* ranks = nullptr);

/// Settles attention.backend. If cuDNN computes attention, experiment.shape.model_options.fused_attention is
/// set and planned for the shapes of the step and of validation. The choice is recorded in
/// experiment.decisions: "attention.backend" under auto, and "attention.library" if cuDNN computes it.
///
/// Under auto a decision in `saved` is followed. Otherwise rank 0 measures, on the step's shape, our kernels,
/// cuDNN with the deterministic backward and, with attention.deterministic: false, cuDNN with the other
/// backward (the decision "attention.deterministic"), as far as the step fits with their workspace.
///
/// Every rank makes the call. Throws ConfigError, on all ranks, if cuDNN is asked for or was decided but is
/// not available, or has another version than when it was decided.
void settle_attention(Experiment& experiment, RankGroups& ranks, Device device, const Decisions& saved);

}  // namespace ottava
