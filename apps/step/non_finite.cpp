#include "apps/step/non_finite.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/ops/host_values.h"

namespace ottava {
namespace {

// As FP8 sees them: a number that f32 can hold may be infinite in bf16.
bool holds_non_finite(TrainingEngine& engine, size_t entry) {
  Fsdp& parameters = engine.parameters();
  const ParameterShard& shard = parameters.shard(parameters.float8()->specs()[entry].parameter);
  if (shard.master.numel() == 0) return false;
  return !std::ranges::all_of(host_values<float>(engine.stream(), shard.master),
                              [](float w) { return std::isfinite(static_cast<float>(bf16(w))); });
}

std::string first_of(std::vector<std::string> names, size_t most) {
  const bool is_cut = names.size() > most;
  if (is_cut) names.resize(most);
  return fmt::format("{}{}", fmt::join(names, ", "), is_cut ? ", ..." : "");
}

}  // namespace

std::string non_finite_gradients(TrainingEngine& engine) {
  constexpr size_t kNamed = 4;
  const std::vector<ParameterSpec>& specs = engine.parameters().specs();
  std::vector<std::string> found;
  for (int p = 0; p < std::ssize(specs); ++p) {
    const Tensor& gradient = engine.parameters().shard(p).gradient;
    if (gradient.numel() > 0 && !std::ranges::all_of(host_values<float>(engine.stream(), gradient),
                                                     [](float g) { return std::isfinite(g); }))
      found.push_back(specs[p].name);
  }
  if (found.empty()) return {};
  return fmt::format("{} of {}: {}", found.size(), specs.size(), first_of(found, kNamed));
}

std::string non_finite_operands(TrainingEngine& engine) {
  if (!engine.float8()) return {};
  const Float8State& float8 = *engine.float8();
  const Float8Weights& of_weights = *engine.parameters().float8();
  const auto flags = host_values<uint32_t>(engine.stream(), float8.all_non_finite()),
             weights = host_values<uint32_t>(engine.stream(), of_weights.non_finite());
  constexpr size_t kNamed = 6;
  std::vector<std::string> found;
  for (size_t w = 0; w < weights.size(); ++w) {
    if (!weights[w]) continue;
    const auto& specs = of_weights.specs();
    const bool is_gradient = w >= specs.size();
    found.push_back(is_gradient ? "a gradient that travels in FP8"
                                : fmt::format("w of {}{}", specs[w].name,
                                              holds_non_finite(engine, w) ? " (in its own shard)" : ""));
  }
  for (size_t slot = 0; slot < flags.size(); ++slot) {
    if (flags[slot])
      found.push_back(fmt::format("{} of {}", slot % 2 ? "dy" : "x", float8.options().products[slot / 2]));
  }
  return first_of(std::move(found), kNamed);
}

}  // namespace ottava
