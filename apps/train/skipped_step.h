#pragma once

#include <string>

#include "apps/config/training_config.h"
#include "apps/step/global_loss.h"
#include "apps/step/training_engine.h"
#include "core/error.h"

namespace ottava {

/// Where the last step went wrong, for people: on which ranks, from which micro-batch on losses are not
/// finite, and which operands of FP8 products and which gradients are not; ranks where it began come first.
/// If operands were not finite anywhere, ranks where only gradients are not finite are left out. All ranks
/// make the call and get the same text; `control` moves CPU tensors. Only for steps that were skipped, since
/// it copies every gradient to the host.
std::string describe_skipped_step(TrainingEngine& engine, Communicator& control);

/// Why a step was skipped whose gradients are finite, but whose factor float32 takes for zero
/// (core/optim/step_scalars.h): "training.max_norm 1e-15 / gradient norm ...", and what to change.
std::string describe_vanishing(const StepOutputs& out, const TrainingConfig& config);

/// What a gradient of exactly 0 means where tokens have a loss: norms take rows whose squares overflow
/// float32 for 0 (core/ops/norm/rms_norm.h), and then nothing is learnt any more, without a value that is not
/// finite.
std::string describe_zero_gradient(const GlobalLoss& loss);

/// Why a step was left out as a spike: "its loss 9.1234 is above 5.0211, ...".
std::string describe_spike(const StepOutputs& out, const SpikeRule& rule);

}  // namespace ottava
