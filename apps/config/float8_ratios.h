#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/decisions.h"
#include "fp8/policy.h"

namespace ottava {

/// The products of one layer on one rank, as timing sees them: layers of equal shape share one measurement.
struct ProductShape {
  int64_t tokens = 0, rows = 0, columns = 0;  ///< T, O, K of x [T,K], W [O,K], all local
  fp8::RecipeName recipe = fp8::RecipeName::tensorwise;
};
/// "quantize.linear.float8.auto 8192 x 14336 x 4096 tensorwise": the name of its decision.
std::string decision_name(const ProductShape& shape);

/// The ratios that decisions hold, for decide_policy(). Throws ConfigError for a shape that they lack, with
/// the advice to make them again or, if they come from `file`, to make that in a run on the GPU.
std::function<std::optional<double>(const fp8::PolicyGemm&, const fp8::Recipe&)> speedups_of(
    const Decisions& decisions, int64_t tokens, const std::string& file);

/// Every distinct shape for which a policy asks whether FP8 is faster.
std::vector<ProductShape> float8_candidates(const fp8::Policy& policy, int64_t tokens);

}  // namespace ottava
