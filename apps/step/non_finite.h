#pragma once

#include <string>

#include "apps/step/training_engine.h"

namespace ottava {

/// Which gradients of the last step are not finite on this rank, for the log: "3 of 20:
/// layers.0.attention.wqkv, ..."; empty if none. Copies every gradient to the host.
std::string non_finite_gradients(TrainingEngine& engine);
/// Which FP8 operands of the last step were not finite on this rank: "x of layers.0.attention.wqkv, ...";
/// empty if none. A weight's amax covers all ranks, so "(in its own shard)" is added if this rank holds the
/// value that is not finite.
std::string non_finite_operands(TrainingEngine& engine);

}  // namespace ottava
