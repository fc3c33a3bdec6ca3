#include "core/optim/optimizer_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {
namespace {

// Where (1 - beta2) g^2 is subnormal, v (adamw.h) stays 0 and only eps divides m. Such a gradient's update
// is no larger than another's if eps is at least sqrt(2^-126 / (1 - beta2)): 4.5e-16 for the largest beta2.
constexpr double kLeastEpsilon = 1e-15;

std::vector<std::pair<std::string, UpdateRule>> rules() {
  std::vector<std::pair<std::string, UpdateRule>> out;
  for (const UpdateRuleTraits& r : kUpdateRules) out.emplace_back(r.name, r.rule);
  return out;
}

double number_of(const std::string& text) {
  using Kind = config::Value::Kind;
  const config::Value value = config::plain_scalar(text, {});
  return value.kind == Kind::integer || value.kind == Kind::real ? value.real : NAN;
}

void declare_muon(config::Section& s, OptimizerConfig& c) {
  s.field("momentum", c.momentum, "Muon's momentum, the decay rate of its running mean of gradients")
      .range(0, config::kMostBelowOne);
  s.field("nesterov", c.nesterov, "use Nesterov momentum in Muon");
  s.field("ns_steps", c.ns_steps, "number of iterations of Muon's Newton-Schulz orthogonalization")
      .range(1, 20)
      .unit("steps");
  s.field("ns_coefficients", c.ns_coefficients,
          "coefficients a, b, c of the Newton-Schulz iteration x = a x + (b A + c A A) x with A = x x^T")
      .or_scalar();
  s.choice("ns_dtype", c.ns_dtype, {{"bfloat16", DType::bf16}, {"float32", DType::f32}},
           "dtype of the Newton-Schulz operands and of the matrices that ranks exchange for it; sums are "
           "always float32");
  using AdjustLr = OptimizerConfig::AdjustLr;
  s.choice("adjust_lr_fn", c.adjust_lr_fn,
           {{"match_rms_adamw", AdjustLr::match_rms_adamw}, {"original", AdjustLr::original}},
           "scale of Muon's update of a matrix; match_rms_adamw: 0.2 sqrt(max(rows, columns)), so that "
           "AdamW's lr and weight_decay fit; original: sqrt(max(1, rows / columns))");
}

// Updates are made in float32.
void check_lr_factors(const OptimizerConfig& c, config::Problems& problems) {
  for (size_t g = 0; g < c.param_groups.size(); ++g) {
    const double lr = c.lr * c.param_groups[g].lr_factor;
    if (lr > config::kMostFloat)
      problems.add("optimizer.param_groups",
                   "entry {}: lr times lr_factor {} is too large for float32; expected at most {}", g + 1, lr,
                   config::kMostFloat);
  }
}

}  // namespace

void declare(config::Section& s, ParamGroupConfig& c) {
  s.field("match", c.match,
          "glob over parameter names such as layers.0.feed_forward.w2, or over their names in checkpoints")
      .required();
  s.field("weight_decay", c.weight_decay, "weight decay of these parameters; null: optimizer.weight_decay")
      .range(0, config::kMostFloat);
  s.field("lr_factor", c.lr_factor, "factor that multiplies the learning rate for these parameters")
      .range(0, config::kMostFloat);
  s.choice("optimizer_name", c.optimizer_name, rules(),
           "optimizer of these parameters; null: chosen by optimizer.name");
}

void declare(config::Section& s, OptimizerConfig& c) {
  s.meaning("optimizer and its hyperparameters");
  s.choice(
       "name", c.name, rules(),
       "optimizer; AdamW: for all parameters; Muon: for the weight matrices of the blocks, with AdamW for "
       "embeddings, output layer, norms and biases")
      .refuse_value("Adam", "its weight decay acts through the gradient and trains differently; use AdamW");
  s.field("lr", c.lr, "peak learning rate, reached at the end of the warm-up").range(0, config::kMostFloat);
  s.field("beta1", c.beta1, "decay rate of AdamW's running mean of gradients")
      .range(0, config::kMostBelowOne);
  s.field("beta2", c.beta2, "decay rate of AdamW's running mean of squared gradients")
      .range(0, config::kMostBelowOne);
  s.field(
       "eps", c.eps,
       "AdamW's epsilon, added to the denominator of the update; a smaller one could not bound the updates "
       "of gradients whose squares float32 rounds to 0")
      .range(kLeastEpsilon, config::kMostFloat);
  s.field("weight_decay", c.weight_decay,
          "decoupled weight decay of all parameters, except where param_groups sets another")
      .range(0, config::kMostFloat);
  s.choice("state_dtype", c.state_dtype, {{"float32", DType::f32}, {"bfloat16", DType::bf16}},
           "dtype in which AdamW's running means are stored; bfloat16 (stochastically rounded) halves their "
           "memory; Muon's momentum is always float32");
  declare_muon(s, c);
  s.list("param_groups", c.param_groups,
         "other settings for parameters whose name matches a pattern; the first match applies");
}

bool OptimizerConfig::names(UpdateRule rule) const {
  return name == rule || std::ranges::any_of(param_groups, [&](const ParamGroupConfig& group) {
           return group.optimizer_name == rule;
         });
}

std::array<double, 3> OptimizerConfig::newton_schulz_coefficients() const {
  std::array<double, 3> out{NAN, NAN, NAN};
  if (ns_coefficients.size() == out.size()) std::ranges::transform(ns_coefficients, out.begin(), number_of);
  return out;
}

void validate(const OptimizerConfig& c, config::Problems& problems) {
  check_lr_factors(c, problems);
  const std::array<double, 3> coefficients = c.newton_schulz_coefficients();
  if (!std::ranges::all_of(coefficients, [](double x) { return std::isfinite(x); })) {
    problems.add("optimizer.ns_coefficients", "expected a list of three numbers, got {}", c.ns_coefficients);
  } else if (!std::ranges::all_of(coefficients, [](double x) { return std::abs(x) <= config::kMostFloat; })) {
    problems.add("optimizer.ns_coefficients", "[{}] is too large for float32; expected at most {} in size",
                 fmt::join(c.ns_coefficients, ", "), config::kMostFloat);
  }
}

void declare(config::Section& s, LrSchedulerConfig& c) {
  s.meaning("learning rate schedule (warmup-stable-decay)");
  s.field("warmup_steps", c.warmup_steps, "steps in which the learning rate rises linearly to optimizer.lr")
      .at_least(0)
      .unit("steps");
  s.field("total_steps", c.total_steps, "length of the schedule; null: training.steps")
      .at_least(1)
      .unit("steps");
  s.field("decay_ratio", c.decay_ratio,
          "fraction of all steps, at the end, in which the learning rate decays; null: all steps after the "
          "warm-up")
      .range(0, 1);
  using Decay = LrSchedulerConfig::Decay;
  s.choice("decay_type", c.decay_type,
           {{"linear", Decay::linear}, {"sqrt", Decay::sqrt}, {"cosine", Decay::cosine}},
           "shape of the decay");
  s.field("min_lr_factor", c.min_lr_factor,
          "learning rate at the end of the decay, as a fraction of optimizer.lr")
      .range(0, 1);
  s.renamed("lr_min", "lr_scheduler.min_lr_factor");
}

}  // namespace ottava
