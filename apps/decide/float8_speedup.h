#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/experiment.h"

namespace ottava {

/// The products of one layer on one rank, as timing sees them: layers of equal shape share one measurement.
struct ProductShape {
  int64_t tokens = 0, rows = 0, columns = 0;  ///< T, O, K of x [T,K], W [O,K], all local
  fp8::RecipeName recipe = fp8::RecipeName::tensorwise;
};
/// "quantize.linear.float8.auto 8192 x 14336 x 4096 tensorwise": the name of its decision.
std::string decision_name(const ProductShape& shape);

/// The decision that holds what measure_float8() predicts: milliseconds of a step's operations and of the
/// collectives for which it waits.
constexpr std::string_view kFloat8StepDecision = "quantize.linear.float8.auto step milliseconds";

/// A decision for each candidate shape: the time of what a step does only without FP8 in the layers of this
/// shape, divided by the time of what it does only with FP8. Both steps are recorded, so that everything
/// counts as often as a step does it: amaxes and their maxima among ranks, casts from masters or gathered
/// copies, transposes, what producers do on the way, and every product (apps/decide/step_times.h). Then
/// kFloat8StepDecision, for the layers in which FP8 won. Every rank makes the call at the same time, on its
/// own GPU, with numbers of both signs in memory that is given back; the results are rank 0's.
std::vector<Decisions::Entry> measure_float8(const Experiment& experiment, RankGroups& ranks, Device device);

/// The ratios that decisions hold, for decide_policy(). Throws ConfigError for a shape that they lack, with
/// the advice to make them again or, if they come from `file`, to make that in a run on the GPU.
std::function<std::optional<double>(const fp8::PolicyGemm&, const fp8::Recipe&)> speedups_of(
    const Decisions& decisions, int64_t tokens, const std::string& file);

/// Every distinct shape for which a policy asks whether FP8 is faster.
std::vector<ProductShape> float8_candidates(const fp8::Policy& policy, int64_t tokens);

}  // namespace ottava
