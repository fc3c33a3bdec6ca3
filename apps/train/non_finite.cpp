#include "apps/train/non_finite.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/ops/elementwise.h"

namespace ottava {
namespace {

// As FP8 sees them: what f32 can hold may be an infinity in bf16.
bool holds_non_finite(TrainingEngine& engine, size_t entry) {
  const ParameterShard& shard =
      engine.parameters().shard(engine.parameters().float8()->specs()[entry].parameter);
  std::vector<float> host(static_cast<size_t>(shard.master.numel()));
  if (host.empty()) return false;
  cast(engine.stream(), shard.master, view_of(host.data(), shard.master.shape));
  engine.stream().synchronize();
  return !std::all_of(host.begin(), host.end(),
                      [](float w) { return std::isfinite(static_cast<float>(bf16(w))); });
}

}  // namespace

std::string non_finite_gradients(TrainingEngine& engine) {
  constexpr int64_t kNamed = 4;
  std::string names;
  int64_t found = 0;
  std::vector<float> host;
  for (size_t p = 0; p < engine.parameters().specs().size(); ++p) {
    const Tensor& gradient = engine.parameters().shard(static_cast<int>(p)).gradient;
    if (gradient.numel() == 0) continue;
    host.resize(static_cast<size_t>(gradient.numel()));
    cast(engine.stream(), gradient, view_of(host.data(), gradient.shape));
    engine.stream().synchronize();
    if (std::all_of(host.begin(), host.end(), [](float g) { return std::isfinite(g); })) continue;
    if (++found <= kNamed) names += (found > 1 ? ", " : "") + engine.parameters().specs()[p].name;
  }
  if (found == 0) return {};
  return fmt::format("{} of {}: {}{}", found, engine.parameters().specs().size(), names,
                     found > kNamed ? ", ..." : "");
}

std::string non_finite_operands(TrainingEngine& engine) {
  if (!engine.float8()) return {};
  const Float8State& float8 = *engine.float8();
  const Float8Weights& of_weights = *engine.parameters().float8();
  std::vector<uint32_t> flags(static_cast<size_t>(float8.all_non_finite().numel())),
      weights(static_cast<size_t>(of_weights.non_finite().numel()));
  cast(engine.stream(), float8.all_non_finite(), view_of(flags.data(), float8.all_non_finite().shape));
  cast(engine.stream(), of_weights.non_finite(), view_of(weights.data(), of_weights.non_finite().shape));
  engine.stream().synchronize();
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
  const bool cut = found.size() > kNamed;
  if (cut) found.resize(kNamed);
  return fmt::format("{}{}", fmt::join(found, ", "), cut ? ", ..." : "");
}

}  // namespace ottava
