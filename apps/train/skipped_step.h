#pragma once

#include <string>

#include "apps/train/training_engine.h"

namespace ottava {

/// Where the last step of all ranks went wrong, for people: which ranks, from which micro-batch on their
/// losses are not finite, which operands of FP8 products and which gradients are not; the ranks that began it
/// first. Where operands were not finite, ranks where only gradients are not finite stay silent. All ranks
/// make the call and get the same text; `control` moves CPU tensors. Copies every gradient to the host: for
/// steps that were skipped.
std::string describe_skipped_step(TrainingEngine& engine, Communicator& control);

/// Why a step was left out as a spike: "its loss 9.1234 is above 5.0211, ...".
std::string describe_spike(const StepOutputs& out, const SpikeRule& rule);

}  // namespace ottava
