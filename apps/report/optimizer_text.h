#pragma once

#include <string>

#include "apps/config/experiment.h"

namespace ottava {

/// What Muon does in a run: "Muon for 42 matrices of 5,111,808 parameters, each worked on by one of 8 ranks,
/// 3 exchanges each way beside the work on others (bf16, 5 steps of Newton-Schulz); AdamW for 1,158,400".
/// Empty where all is AdamW's.
std::string optimizer_text(const Experiment& experiment);

}  // namespace ottava
