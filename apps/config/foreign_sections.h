#pragma once

#include "core/config/declare.h"

namespace ottava {

/// Sections of TorchTitan's files that have no struct here: compile, memory_estimation, fault_tolerance,
/// experimental, quantize.linear.mx, quantize.grouped_mm. Their keys are known, and noted or refused.
void declare_foreign_sections(config::Section& root, config::Section& quantize, config::Section& linear);

}  // namespace ottava
