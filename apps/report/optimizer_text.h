#pragma once

#include <string>

#include "apps/config/experiment.h"

namespace ottava {

/// What Muon does in a run: "Muon for 42 matrices of 4,718,592 parameters, each worked on by one of 8 ranks,
/// 3 exchanges each way (bf16, 5 steps of Newton-Schulz); AdamW for 1,551,616". Empty where all is AdamW's.
std::string optimizer_text(const Experiment& experiment);

}  // namespace ottava
