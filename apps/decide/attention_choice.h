#pragma once

#include <string_view>

#include "apps/config/experiment.h"

namespace ottava {

/// Settles attention.backend, with the decisions "attention.backend" under auto and "attention.library" where
/// cuDNN computes it: experiment.shape.model_options.fused_attention is there where cuDNN computes
/// attention, planned for the step's and the validation's shapes, and experiment.decisions says so. Under
/// auto a decision in `saved` is followed, else rank 0 measures on the step's shape our kernels, cuDNN with
/// the deterministic backward and, with attention.deterministic: false, with the other one (the decision
/// "attention.deterministic"), as far as the step fits with their workspace. Every rank makes
/// the call. Throws ConfigError, on all ranks, where cudnn is asked for or was decided and cannot be had, or
/// has another version than what was decided with.
void settle_attention(Experiment& experiment, RankGroups& ranks, Device device, const Decisions& saved);

}  // namespace ottava
