#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "apps/config/experiment.h"

namespace ottava {

/// The decision that holds what measure_float8() predicts: milliseconds of a step's operations and of the
/// collectives for which it waits.
constexpr std::string_view kFloat8StepDecision = "quantize.linear.float8.auto step milliseconds";

/// A decision for each candidate shape: the time of what a step does only without FP8 in the layers of this
/// shape, divided by the time of what it does only with FP8. Both steps are recorded, so that everything
/// counts as often as a step does it: amaxes and their maxima among ranks, casts from masters or gathered
/// copies, transposes, what producers do on the way, and every product (apps/decide/operation_times.h). Then
/// kFloat8StepDecision, for the layers in which FP8 won. Every rank makes the call at the same time, on its
/// own GPU, with numbers of both signs in memory that is given back; the results are rank 0's.
std::vector<Decisions::Entry> measure_float8(const Experiment& experiment, RankGroups& ranks, Device device);

/// What `measure` says of the step that `decide` makes of the experiment with FP8 in every candidate. With
/// FP8 only where that won, a step may take another memory, so that other things are decided than in the step
/// that was measured: then that one is measured too, once, and its times count.
std::vector<Decisions::Entry> measure_as_decided(
    const Experiment& experiment, const std::function<Experiment(const Experiment&)>& decide,
    const std::function<std::vector<Decisions::Entry>(const Experiment&)>& measure);

}  // namespace ottava
