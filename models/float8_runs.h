#pragma once

#include <functional>
#include <string_view>

#include "fp8/policy.h"
#include "models/float8_state.h"

namespace ottava {

/// Compares what has run since begin_step() with the policy: each layer must have run the products that its
/// recipe has in FP8, in that recipe, and no others. Looks only at layers whose name this rank `holds`.
/// Throws NumericsError that names the layers that ran otherwise, with the counts.
void check_float8_runs(const fp8::Policy& policy, const Float8State& state,
                       const std::function<bool(std::string_view)>& holds);

}  // namespace ottava
