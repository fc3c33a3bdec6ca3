#include "apps/report/float8_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <map>

#include "core/ops/host_values.h"
#include "core/text/counted.h"
#include "parallel/comm/agree.h"

namespace ottava {
namespace {

using fp8::Role;

constexpr Role kRoles[] = {Role::x, Role::w, Role::dy};
constexpr size_t kNamedLayers = 4;
/// A layer has recovered at this part of the threshold.
constexpr double kRecovered = 0.5;

std::string_view name_of(Role role) { return role == Role::x ? "x" : role == Role::w ? "w" : "dy"; }

const fp8::OperandRecipe& operand_recipe(const fp8::Recipe& recipe, Role role) {
  return role == Role::x ? recipe.forward.a : role == Role::w ? recipe.forward.b : recipe.input_gradient.a;
}

// Slots on the host: x and dy of each product in turn, then the weights.
struct Slots {
  std::vector<uint32_t> amax, scale_amax;
  std::vector<int64_t> counters;
  static size_t of(size_t product, Role role, size_t products) {
    return role == Role::w ? 2 * products + product : 2 * product + (role == Role::dy);
  }
};

template <class T>
void append(Stream& stream, const Tensor& device, std::vector<T>& host) {
  const std::vector<T> values = host_values<T>(stream, device);
  host.insert(host.end(), values.begin(), values.end());
}

// What scales of recipe delayed are made from, by slot, as delayed_amax() does; zero while the history fills.
void append_history(Stream& stream, fp8::AmaxHistory* history, size_t slots, std::vector<uint32_t>& host) {
  std::vector<uint32_t> largest(slots, 0);
  if (history && history->is_full()) {
    const std::vector<uint32_t> rows = host_values<uint32_t>(stream, history->rows);
    for (size_t i = 0; i < rows.size(); ++i) largest[i % slots] = std::max(largest[i % slots], rows[i]);
    for (uint32_t& bits : largest)
      bits = fp8::with_margin(bits > 0 ? bits : fp8::kUnseenAmax, history->margin);
  }
  host.insert(host.end(), largest.begin(), largest.end());
}

Slots read_slots(TrainingEngine& engine, size_t products) {
  Float8State& state = *engine.float8();
  Float8Weights& weights = *engine.parameters().float8();
  Stream& stream = engine.context().stream;
  Slots slots;
  append(stream, state.step_amax(), slots.amax);
  append(stream, weights.amax(), slots.amax);
  append(stream, state.all_counters(), slots.counters);
  append(stream, weights.counters(), slots.counters);
  append_history(stream, state.history(), 2 * products, slots.scale_amax);
  append_history(stream, weights.history(), products, slots.scale_amax);
  state.clear_counters(stream);
  weights.clear_counters(stream);
  return slots;
}

enum class Trouble { underflow, saturation };

struct Kind {
  std::string_view name;
  Trouble trouble;
  Role role;
  double threshold;
  double (Float8Operand::*fraction)() const;
};

/// What can be done in layers of these recipes; nothing that they do already.
std::string advice_for(Trouble trouble, Role role, const std::set<fp8::RecipeName>& recipes) {
  constexpr std::string_view kKeep =
      "keep such layers in bf16 with entries {match: LAYER, recipe: bf16} of quantize.linear.float8.policy";
  const auto some = [&](auto&& holds) {
    return std::ranges::any_of(recipes, [&](fp8::RecipeName name) { return holds(fp8::make_recipe(name)); });
  };
  const bool has_history = some([](const fp8::Recipe& r) { return r.has_history(); });
  if (trouble == Trouble::saturation && !has_history)
    return "an infinity or NaN in a tensor leaves it without a scale: lower optimizer.lr, raise "
           "lr_scheduler.warmup_steps, or check the data";
  if (trouble == Trouble::saturation)
    return fmt::format(
        "the scales of earlier steps are outdated: raise quantize.linear.float8.margin, use recipe_name "
        "tensorwise instead of delayed, or {}",
        kKeep);
  if (role == Role::dy) {
    if (some([](const fp8::Recipe& r) { return r.weight_gradient.is_fp8; }))
      return fmt::format(
          "the weight gradient may need high precision: use recipe_name tensorwise_with_gw_hp or "
          "rowwise_with_gw_hp, or {}",
          kKeep);
    if (some([](const fp8::Recipe& r) { return r.input_gradient.a.format == DType::e4m3; }))
      return fmt::format("E5M2 holds smaller numbers than E4M3: use recipe_name tensorwise_with_gw_hp, or {}",
                         kKeep);
    return std::string(kKeep);
  }
  const auto shares_widely = [role](const fp8::Recipe& r) {
    return !fp8::traits(operand_recipe(r, role).granularity).has_blocks();
  };
  if (some(shares_widely))
    return fmt::format("scales of smaller groups lose less: use recipe_name blockwise, or {}", kKeep);
  return std::string(kKeep);
}

}  // namespace

std::vector<Float8Operand> read_float8(TrainingEngine& engine, Communicator& control) {
  if (!engine.float8() || !engine.float8()->options().counts) return {};
  const std::vector<std::string>& names = engine.float8()->options().products;
  Slots slots = read_slots(engine, names.size());
  reduce_on_host(control, view_of(slots.amax.data(), {std::ssize(slots.amax)}), "FP8 amaxes", ReduceOp::max);
  reduce_on_host(control, view_of(slots.counters.data(), {std::ssize(slots.counters)}), "FP8 counters");
  std::vector<Float8Operand> out;
  for (size_t p = 0; p < names.size(); ++p) {
    const fp8::Recipe& recipe = *engine.shape().float8_policy.find(names[p])->recipe;
    for (Role role : kRoles) {
      const size_t slot = Slots::of(p, role, names.size());
      const int64_t* counters = &slots.counters[3 * slot];
      const fp8::OperandRecipe& made = operand_recipe(recipe, role);
      const uint32_t amax = slots.amax[slot], of_history = slots.scale_amax[slot],
                     scaled = recipe.has_history() && of_history != 0 ? of_history : amax;
      out.push_back({.layer = names[p],
                     .role = role,
                     .recipe = recipe.name,
                     .amax = std::bit_cast<float>(amax),
                     .scale = fp8::scale_from_amax(scaled, fp8::format_of(made.format), made.rounding).scale,
                     .elements = counters[0],
                     .underflow = counters[1],
                     .saturation = counters[2]});
    }
  }
  return out;
}

std::vector<std::pair<std::string, double>> float8_scalars(const std::vector<Float8Operand>& operands) {
  std::vector<std::pair<std::string, double>> out;
  std::map<std::string, double> worst;
  for (const Float8Operand& o : operands) {
    const std::string role(name_of(o.role)), name = "fp8/" + o.layer + "/" + role;
    if (o.scale != 0) {
      out.emplace_back(name + "/amax", o.amax);
      out.emplace_back(name + "/scale", o.scale);
    }
    out.emplace_back(name + "/underflow", o.underflow_fraction());
    out.emplace_back(name + "/saturation", o.saturation_fraction());
    double &underflow = worst["fp8/worst/" + role + "/underflow"],
           &saturation = worst["fp8/worst/" + role + "/saturation"];
    underflow = std::max(underflow, o.underflow_fraction());
    saturation = std::max(saturation, o.saturation_fraction());
  }
  out.insert(out.end(), worst.begin(), worst.end());
  return out;
}

std::vector<std::string> Float8Alerts::check(const std::vector<Float8Operand>& operands) {
  std::vector<Kind> kinds;
  for (Role role : kRoles) {
    kinds.push_back({"underflow", Trouble::underflow, role,
                     role == Role::dy ? config_.alert_gradient_underflow : config_.alert_underflow,
                     &Float8Operand::underflow_fraction});
    kinds.push_back({"saturation", Trouble::saturation, role, config_.alert_saturation,
                     &Float8Operand::saturation_fraction});
  }
  std::vector<std::string> warnings;
  for (const Kind& kind : kinds) {
    std::vector<std::pair<double, std::string_view>> found;
    std::set<fp8::RecipeName> recipes;
    for (const Float8Operand& o : operands) {
      if (o.role != kind.role || o.elements == 0) continue;
      const double fraction = (o.*kind.fraction)();
      const std::string key = fmt::format("{} {} {}", o.layer, name_of(o.role), kind.name);
      if (fraction <= kind.threshold * kRecovered) {
        raised_.erase(key);
      } else if (fraction > kind.threshold && raised_.insert(key).second) {
        found.emplace_back(fraction, o.layer);
        recipes.insert(o.recipe);
      }
    }
    if (found.empty()) continue;
    std::ranges::stable_sort(found, std::greater(), &std::pair<double, std::string_view>::first);
    std::string layers;
    for (size_t i = 0; i < std::min(found.size(), kNamedLayers); ++i) {
      layers += fmt::format("{}{} {:.3g}%", i > 0 ? ", " : "", found[i].second, 100 * found[i].first);
    }
    if (found.size() > kNamedLayers)
      layers += fmt::format(" and {}", counted(found.size() - kNamedLayers, "more layer"));
    warnings.push_back(fmt::format("FP8 {} of {} above {:.3g}%: {}; {}", kind.name, name_of(kind.role),
                                   100 * kind.threshold, layers,
                                   advice_for(kind.trouble, kind.role, recipes)));
  }
  return warnings;
}

}  // namespace ottava
