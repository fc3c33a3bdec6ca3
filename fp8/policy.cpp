#include "fp8/policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/contains.h"
#include "core/round_up.h"
#include "core/sum_of.h"
#include "core/text/listed.h"
#include "fp8/policy_match.h"

namespace ottava::fp8 {
namespace {

/// What one part of a layer should run in, before its shape is looked at.
struct Choice {
  std::optional<Recipe> recipe;
  std::string reason;
  const Float8PolicyConfig* entry = nullptr;  ///< of the policy list, if one decided
  bool runs_like(const Choice& other) const {
    return recipe ? other.recipe && recipe->name == other.recipe->name : !other.recipe;
  }
};

/// Parts that run alike stay one product, with all of their reasons.
Choice merged(const std::vector<Choice>& choices) {
  Choice all = choices[0];
  for (const Choice& choice : choices) {
    if (choice.entry && !all.entry) all.entry = choice.entry;
    if (!contains_text(all.reason, choice.reason)) all.reason += "; " + choice.reason;
  }
  return all;
}

std::string blocks(int64_t n) { return n == 1 ? "block stays" : fmt::format("{} blocks stay", n); }

Choice before_names(const Float8Config& config, const PolicyInputs& inputs, const PolicyGemm& gemm,
                    const Recipe& recipe) {
  if (gemm.role == GemmRole::output) return {{}, "the output layer stays in high precision"};
  if (gemm.layer >= 0 && gemm.layer < config.high_precision_first_blocks) {
    return {{}, fmt::format("the first {} in high precision", blocks(config.high_precision_first_blocks))};
  }
  if (gemm.layer >= 0 && gemm.layer >= inputs.layers - config.high_precision_last_blocks) {
    return {{}, fmt::format("the last {} in high precision", blocks(config.high_precision_last_blocks))};
  }
  return {recipe, "recipe_name"};
}

std::vector<Choice> choose(const Float8Config& config, const PolicyInputs& inputs, const PolicyGemm& gemm) {
  const Recipe recipe = make_recipe(parse_recipe(config.recipe_name), config.power_of_two_scales);
  std::vector<Choice> choices(gemm.parts.size(), before_names(config, inputs, gemm, recipe));
  auto set = [&](const std::vector<bool>& covered, const Choice& choice) {
    for (size_t i = 0; i < covered.size(); ++i) {
      if (covered[i]) choices[i] = choice;
    }
  };
  for (const std::string& filter : config.filter_fqns) {
    if (filter != kAutoFilter)
      set(parts_matching_filter(gemm, filter), {{}, fmt::format("filter_fqns \"{}\"", filter)});
  }
  for (const Float8PolicyConfig& entry : config.policy) {
    Choice choice{{}, fmt::format("policy \"{}\"", entry.match), &entry};
    if (entry.recipe != "bf16")
      choice.recipe = make_recipe(parse_recipe(entry.recipe), config.power_of_two_scales);
    set(parts_matching_glob(gemm, entry.match), choice);
  }
  return choices;
}

/// torchao's thresholds (float8_linear_utils.py), measured on H100: why this shape is too small, or nothing.
/// N rows, K columns.
std::string too_small(RecipeName recipe, int64_t n, int64_t k) {
  switch (recipe) {
    case RecipeName::tensorwise:
    case RecipeName::tensorwise_with_gw_hp:
    case RecipeName::delayed:
      return k <= 4096 && n <= 1024 ? fmt::format("K {} <= 4096 and N {} <= 1024", k, n) : "";
    case RecipeName::rowwise:
      if (n <= 2048) return fmt::format("N {} <= 2048", n);
      if (k <= 1024) return fmt::format("K {} <= 1024", k);
      return n <= 4096 && k <= 2048 ? fmt::format("N {} <= 4096 and K {} <= 2048", n, k) : "";
    default:
      fail<ConfigError>("fp8",
                        "{} has thresholds only for recipes tensorwise, tensorwise_with_gw_hp, delayed and "
                        "rowwise, not for {}: remove it from quantize.linear.float8.filter_fqns",
                        kAutoFilter, name_of(recipe));
  }
}

void apply_size_rule(GemmDecision& decision) {
  const PolicyGemm& gemm = decision.gemm;
  const RecipeName recipe = decision.recipe->name;
  if (const std::string why = too_small(recipe, gemm.rows(), gemm.columns); !why.empty()) {
    decision.recipe.reset();
    decision.reason = fmt::format("{}: {}", kAutoFilter, why);
    return;
  }
  std::vector<std::string_view> apart;
  for (const auto& part : gemm.parts) {
    if (!too_small(recipe, part.rows, gemm.columns).empty()) apart.push_back(part.name);
  }
  if (!apart.empty())
    decision.reason += fmt::format("; torchao, not fused, would keep {} in bf16", fmt::join(apart, ", "));
}

/// An extent of a layer's product, in all and on each tensor-parallel rank.
struct Extent {
  std::string_view what;
  int64_t global = 0, local = 0;
};

/// Why it is not a multiple on a rank, with the arithmetic; empty if it is.
std::string misfit(const Extent& extent, int64_t of, int64_t tensor_parallel) {
  const auto& [what, global, local] = extent;
  if (local % of == 0) return "";
  const auto ratio = [of](int64_t size) {
    return fmt::format("{}/{} = {:.6g}", size, of, static_cast<double>(size) / of);
  };
  if (local == global)
    return fmt::format("{} {} is not a multiple of {} ({})", global, what, of, ratio(global));
  if (local * tensor_parallel == global) {
    return fmt::format("{} {} / tp {} = {} is not a multiple of {} ({})", global, what, tensor_parallel,
                       local, of, ratio(global));
  }
  return fmt::format("{} of {} {} on a rank of tp {} is not a multiple of {} ({})", local, global, what,
                     tensor_parallel, of, ratio(local));
}

std::string shape_problem(const GemmDecision& decision, const PolicyInputs& inputs) {
  const PolicyGemm& gemm = decision.gemm;
  const int64_t of = decision.recipe->alignment(), tp = inputs.tensor_parallel;
  std::string why;
  const int64_t tokens = inputs.local_tokens;
  if (decision.padded_rows == 0)
    why = misfit({.what = "rows", .global = gemm.rows(), .local = gemm.local_rows()}, of, tp);
  if (why.empty())
    why = misfit({.what = "columns", .global = gemm.columns, .local = gemm.local_columns}, of, tp);
  if (why.empty()) why = misfit({.what = "tokens", .global = tokens, .local = tokens}, of, tp);
  return why;
}

// What can be changed about the first extent that does not fit.
std::string remedy(const GemmDecision& decision) {
  const PolicyGemm& gemm = decision.gemm;
  const int64_t of = decision.recipe->alignment();
  const bool rows_fit = decision.padded_rows > 0 || gemm.local_rows() % of == 0;
  if (rows_fit && gemm.local_columns % of == 0)
    return "another training.seq_len, or another micro-batch size (training.local_batch_size, in a pipeline "
           "parallelism.pipeline_parallel_microbatch_size)";
  if (!rows_fit && gemm.role == GemmRole::output) {
    return fmt::format("a vocabulary of {}, quantize.linear.float8.pad_vocabulary: true",
                       round_up(gemm.rows(), 512));
  }
  // A smaller degree leaves an extent as it is that is not cut, or does not fit as a whole.
  const int64_t whole = rows_fit ? gemm.columns : gemm.rows(),
                local = rows_fit ? gemm.local_columns : gemm.local_rows();
  if (local != whole && whole % of == 0) return "a smaller parallelism.tensor_parallel_degree";
  return fmt::format("dimensions of the model (section model) that make {} a multiple of {}",
                     rows_fit ? "its columns" : "its rows", of);
}

[[noreturn]] void refuse(const GemmDecision& decision, const Float8PolicyConfig& entry,
                         const std::string& why) {
  const PolicyGemm& gemm = decision.gemm;
  fail<ConfigError>(
      "fp8", "policy \"{}\": {} asks for {} in {}, but {}; possible changes: {}, or recipe bf16 for it",
      entry.match, entry.recipe, gemm.name, name_of(decision.recipe->name), why, remedy(decision));
}

void pad(GemmDecision& decision, const PolicyInputs& inputs) {
  const int64_t rows = decision.gemm.rows(),
                to = round_up(rows, decision.recipe->alignment() * inputs.tensor_parallel);
  if (to == rows) return;
  decision.padded_rows = to;
  decision.gemm.parts[0].local_rows = to / inputs.tensor_parallel;
  decision.reason += fmt::format("; {} rows padded to {} (+{:.1f}%)", rows, to, 100.0 * (to - rows) / rows);
}

void check_hardware(GemmDecision& decision, const Float8Config& config, const PolicyInputs& inputs) {
  if (!inputs.hardware) return;
  const auto& has = *inputs.hardware;
  if (contains(has, decision.recipe->name)) return;
  if (!config.emulate) {
    const std::string names = listed(has, [](RecipeName name) { return name_of(name); });
    fail<DeviceError>("fp8",
                      "this GPU does not multiply recipe {} ({}): it has {}; set "
                      "quantize.linear.float8.emulate to emulate it in bf16 arithmetic",
                      name_of(decision.recipe->name), decision.gemm.name, names.empty() ? "none" : names);
  }
  decision.is_emulated = true;
  decision.reason += "; emulated";
}

bool has_auto_filter(const Float8Config& config) { return contains(config.filter_fqns, kAutoFilter); }

void settle_by_speed(GemmDecision& decision, const PolicyInputs& inputs) {
  if (!inputs.measured_speedup || (decision.is_emulated && !inputs.is_measured_elsewhere)) {
    fail<ConfigError>("fp8",
                      "quantize.linear.float8.auto compares the speed of FP8 and bf16, which is "
                      "meaningless on a device that emulates FP8: remove it, or set "
                      "quantize.linear.float8.auto_decisions to the decisions.json of a run on the GPU");
  }
  decision.is_measured = true;
  const std::optional<double> speedup = inputs.measured_speedup(decision.gemm, *decision.recipe);
  decision.reason = speedup ? fmt::format("measured {:.2f}x", *speedup) : "auto: not measured yet";
  if (speedup && *speedup < 1) decision.recipe.reset();
}

void settle(GemmDecision& decision, const Choice& choice, const Float8Config& config,
            const PolicyInputs& inputs) {
  if (!decision.recipe) return;
  if (has_auto_filter(config) && !choice.entry) apply_size_rule(decision);
  if (!decision.recipe) return;
  if (config.pad_vocabulary && decision.gemm.role == GemmRole::output) pad(decision, inputs);
  if (const std::string why = shape_problem(decision, inputs); !why.empty()) {
    if (choice.entry) refuse(decision, *choice.entry, why);
    decision.recipe.reset();
    decision.reason = why;
    return;
  }
  check_hardware(decision, config, inputs);
  if (config.automatic && !choice.entry) settle_by_speed(decision, inputs);
}

}  // namespace

int64_t PolicyGemm::rows() const { return sum_of(parts, &Part::rows); }
int64_t PolicyGemm::local_rows() const { return sum_of(parts, &Part::local_rows); }

int64_t Policy::fp8_products() const {
  return sum_of(decisions,
                [](const GemmDecision& d) -> int64_t { return d.recipe ? d.recipe->fp8_products() : 0; });
}

void require_some_float8(const Policy& policy, const Float8Config& config) {
  if (policy.fp8_products() > 0 || config.automatic || has_auto_filter(config)) return;
  fail<ConfigError>("fp8",
                    "model.converters contains quantize.linear.float8, but no layer can run in FP8: {}; "
                    "change that, or remove quantize.linear.float8 from model.converters",
                    policy_summary(policy));
}

const GemmDecision* Policy::find(std::string_view name) const {
  for (const GemmDecision& d : decisions) {
    if (d.gemm.name == name) return &d;
  }
  return nullptr;
}

Policy decide_policy(const Float8Config& config, const PolicyInputs& inputs) {
  check_entries(config, inputs.gemms);
  Policy policy{.tensor_parallel = inputs.tensor_parallel};
  for (const PolicyGemm& gemm : inputs.gemms) {
    const std::vector<Choice> choices = choose(config, inputs, gemm);
    const bool together =
        std::ranges::all_of(choices, [&](const Choice& c) { return c.runs_like(choices[0]); });
    for (size_t i = 0; i < (together ? 1 : choices.size()); ++i) {
      const Choice choice = together ? merged(choices) : choices[i];
      GemmDecision decision{.gemm = gemm, .recipe = choice.recipe, .reason = choice.reason};
      if (!together) {
        decision.gemm.name = part_name(gemm, gemm.parts[i]);
        decision.gemm.parts = {gemm.parts[i]};
        decision.is_split = true;
      }
      settle(decision, choice, config, inputs);
      if (!together)
        decision.reason += fmt::format("; split from {}", gemm.name.substr(gemm.name.rfind('.') + 1));
      policy.decisions.push_back(std::move(decision));
    }
  }
  return policy;
}

}  // namespace ottava::fp8
