#include "apps/config/resolved_optimizer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "core/error.h"
#include "core/text/counted.h"
#include "core/text/glob.h"

namespace ottava {
namespace {

void require_possible(UpdateRule rule, size_t group, const ParameterSpec& spec) {
  if (traits_of(rule).is_for_matrices && spec.is_vector) {
    fail<ConfigError>("optimizer",
                      "param_groups entry {} assigns {} to {}, which is for matrices, but it is a vector of "
                      "{}: leave it to AdamW",
                      group + 1, spec.name, traits_of(rule).name, counted(spec.rows(), "element"));
  }
}

/// Whether entry `group` + 1 is for this parameter: by its name here, or by those of all tensors that it is
/// in a checkpoint.
bool is_for(const std::string& match, size_t group, const ParameterSpec& spec) {
  if (glob_matches(match, spec.name)) return true;
  const auto is_matched = [&](const ParameterPart& part) { return glob_matches(match, part.hf_name); };
  const auto matched = std::ranges::find_if(spec.parts, is_matched),
             other = std::ranges::find_if_not(spec.parts, is_matched);
  if (matched != spec.parts.end() && other != spec.parts.end()) {
    fail<ConfigError>("optimizer",
                      "param_groups entry {} matches {} but not {}, although both are trained together as {} "
                      "('{}'): use a pattern that matches both, such as '*{}'",
                      group + 1, matched->hf_name, other->hf_name, spec.name, match,
                      spec.name.substr(spec.name.rfind('.') + 1));
  }
  return matched != spec.parts.end();
}

/// Whether a pattern matches this parameter or a part of it.
bool matches_any(const std::string& match, const ParameterSpec& spec) {
  return glob_matches(match, spec.name) || std::ranges::any_of(spec.parts, [&](const ParameterPart& part) {
           return glob_matches(match, part.hf_name);
         });
}

/// What optimizer.name chooses for a parameter that no group gives another rule.
UpdateRule usual_rule(const OptimizerConfig& c, const ParameterSpec& spec) {
  return traits_of(c.name).is_for_matrices && spec.role != ParameterRole::linear ? UpdateRule::adamw : c.name;
}

/// `group` applies to nothing; `overruled_by`: the numbers of those before it that match what it matches.
[[noreturn]] void refuse_unused(size_t group, const std::string& match,
                                const std::set<size_t>& overruled_by) {
  if (overruled_by.empty()) {
    fail<ConfigError>("optimizer",
                      "param_groups entry {} matches no parameter: '{}'; parameters have names such as "
                      "layers.0.attention_norm",
                      group + 1, match);
  }
  const bool is_one = overruled_by.size() == 1;
  fail<ConfigError>("optimizer",
                    "param_groups entry {} has no effect: {} {} before it {} every parameter that '{}' "
                    "matches, and the first match applies: put it before {}, or remove it",
                    group + 1, is_one ? "entry" : "entries", fmt::join(overruled_by, ", "),
                    is_one ? "matches" : "match", match, is_one ? "that" : "those");
}

AdamwHyper resolve_adamw(const OptimizerConfig& c, int64_t seed) {
  return {.beta1 = static_cast<float>(c.beta1),
          .beta2 = static_cast<float>(c.beta2),
          .eps = static_cast<float>(c.eps),
          .seed = static_cast<uint64_t>(seed)};
}

MuonOptions resolve_muon(const OptimizerConfig& c) {
  MuonOptions out;
  out.hyper.momentum = static_cast<float>(c.momentum);
  out.hyper.nesterov = c.nesterov;
  out.hyper.steps = static_cast<int>(c.ns_steps);
  std::ranges::transform(c.newton_schulz_coefficients(), out.hyper.coefficients.begin(),
                         [](double x) { return static_cast<float>(x); });
  out.adjust = c.adjust_lr_fn == OptimizerConfig::AdjustLr::original ? MuonOptions::Adjust::original
                                                                     : MuonOptions::Adjust::match_rms_adamw;
  out.precision = c.ns_dtype;
  return out;
}

}  // namespace

std::vector<ParameterTraining> resolve_groups(const OptimizerConfig& c,
                                              const std::vector<ParameterSpec>& specs) {
  std::vector<ParameterTraining> out;
  std::vector<bool> used(c.param_groups.size(), false);
  std::vector<std::set<size_t>> overruled_by(c.param_groups.size());
  for (const ParameterSpec& spec : specs) {
    ParameterTraining training{static_cast<float>(c.weight_decay), 1.0f, usual_rule(c, spec)};
    std::optional<size_t> first;
    for (size_t g = 0; g < c.param_groups.size(); ++g) {
      const ParamGroupConfig& group = c.param_groups[g];
      if (first) {
        if (matches_any(group.match, spec)) overruled_by[g].insert(*first + 1);
        continue;
      }
      if (!is_for(group.match, g, spec)) continue;
      first = g;
      used[g] = true;
      training.weight_decay = static_cast<float>(group.weight_decay.value_or(c.weight_decay));
      training.lr_factor = static_cast<float>(group.lr_factor);
      training.rule = group.optimizer_name.value_or(training.rule);
      if (group.optimizer_name) require_possible(training.rule, g, spec);
    }
    out.push_back(training);
  }
  for (size_t g = 0; g < used.size(); ++g)
    if (!used[g]) refuse_unused(g, c.param_groups[g].match, overruled_by[g]);
  return out;
}

void resolve_optimizer(const OptimizerConfig& c, int64_t seed, TrainingShape& shape) {
  shape.adamw = resolve_adamw(c, seed);
  shape.muon = resolve_muon(c);
}

}  // namespace ottava
