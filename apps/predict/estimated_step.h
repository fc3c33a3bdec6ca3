#pragma once

#include "apps/predict/decided_step.h"
#include "apps/predict/fewer_blocks.h"

namespace ottava {

/// The figures of the step that a run would take on ranks that may take `limit_gib`, estimated
/// (fewer_blocks.h). An estimate is a lower limit of what a step needs, or close to it, so that its recording
/// may decide for less memory.
///
/// Of what mode auto recomputes between op and all but attention nothing is recorded, but for a pipeline:
/// blocks of each kind add what they add where all are of that kind. That is exact for FLOPs, bytes, calls
/// and traffic, and within 2% for bytes alive and time.
Decided<StepFigures> estimate_decided(const Experiment& given, Device device, const Machine& machine,
                                      double limit_gib);

}  // namespace ottava
