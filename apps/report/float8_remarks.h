#pragma once

#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/step/step_plan.h"

namespace ottava {

/// float8_remarks() of this experiment (models/llama/llama_float8.h), and what the codes of gathered weights
/// cost in memory and quantizing.
std::vector<std::string> float8_remarks(const Experiment& experiment, const StepPlan& plan);
/// Quantizing of gathered weights in a step: calls, and bytes that cross memory.
struct WeightQuantizing {
  int64_t calls = 0;
  double bytes = 0;
};
WeightQuantizing weight_quantizing(const StepPlan& plan);

}  // namespace ottava
