#include "core/optim/optimizer_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {
namespace {

double number_of(const std::string& text) {
  using Kind = config::Value::Kind;
  const config::Value value = config::plain_scalar(text, {});
  return value.kind == Kind::integer || value.kind == Kind::real ? value.real : NAN;
}

void declare_muon(config::Section& s, OptimizerConfig& c) {
  s.field("momentum", c.momentum).at_least(0).below(1).meaning("decay of Muon's mean of gradients");
  s.field("nesterov", c.nesterov).meaning("Muon looks ahead along its momentum");
  s.field("ns_steps", c.ns_steps)
      .range(1, 20)
      .unit("steps")
      .meaning("length of Muon's Newton-Schulz iteration");
  s.field("ns_coefficients", c.ns_coefficients)
      .or_scalar()
      .meaning("a, b, c of x = a x + (b A + c A A) x with A = x x^T");
  s.choice("ns_dtype", c.ns_dtype, {{"bfloat16", DType::bf16}, {"float32", DType::f32}})
      .meaning("operands of Newton-Schulz, and what travels to and from a matrix's owner; sums are float32");
  using AdjustLr = OptimizerConfig::AdjustLr;
  s.choice("adjust_lr_fn", c.adjust_lr_fn,
           {{"match_rms_adamw", AdjustLr::match_rms_adamw}, {"original", AdjustLr::original}})
      .meaning(
          "Muon's update of a matrix times 0.2 sqrt(max(rows, columns)), which suits AdamW's lr and "
          "weight_decay, or times sqrt(max(1, rows / columns))");
}

}  // namespace

void declare(config::Section& s, ParamGroupConfig& c) {
  s.field("match", c.match).required().meaning("glob over parameter names");
  s.field("weight_decay", c.weight_decay)
      .at_least(0)
      .meaning("decay of these parameters; null: optimizer.weight_decay");
  s.field("lr_factor", c.lr_factor).at_least(0).meaning("their learning rate is the schedule's times this");
  s.field("optimizer_name", c.optimizer_name)
      .one_of({"AdamW", "Muon"})
      .meaning("update rule of these parameters; null: optimizer.name's choice");
}

void declare(config::Section& s, OptimizerConfig& c) {
  s.meaning("what turns gradients into new weights");
  s.field("name", c.name)
      .one_of({"AdamW", "Muon"})
      .refuse_value("Adam", "its decay is coupled to the gradient and trains differently; use AdamW")
      .meaning(
          "update rule; Muon: of the matrices of the blocks, while embeddings, output layer, norms and "
          "biases "
          "stay with AdamW");
  s.field("lr", c.lr).at_least(0).meaning("peak learning rate");
  s.field("beta1", c.beta1).at_least(0).below(1).meaning("decay of the mean of gradients");
  s.field("beta2", c.beta2).at_least(0).below(1).meaning("decay of the mean of squared gradients");
  s.field("eps", c.eps).above(0).meaning("added to the root of the squared mean");
  s.field("weight_decay", c.weight_decay)
      .at_least(0)
      .meaning("decoupled decay, of every parameter unless param_groups says otherwise");
  s.choice("state_dtype", c.state_dtype, {{"float32", DType::f32}, {"bfloat16", DType::bf16}})
      .meaning("storage of AdamW's means (Muon's is float32); bfloat16 is rounded stochastically");
  declare_muon(s, c);
  s.list("param_groups", c.param_groups).meaning("exceptions by name pattern; the first match decides");
}

bool OptimizerConfig::uses_muon() const {
  return name == "Muon" ||
         std::ranges::any_of(param_groups, [](const auto& group) { return group.optimizer_name == "Muon"; });
}

std::array<double, 3> OptimizerConfig::newton_schulz_coefficients() const {
  std::array<double, 3> out{NAN, NAN, NAN};
  if (ns_coefficients.size() == out.size()) std::ranges::transform(ns_coefficients, out.begin(), number_of);
  return out;
}

void validate(const OptimizerConfig& c, config::Problems& problems) {
  if (std::ranges::all_of(c.newton_schulz_coefficients(), [](double x) { return std::isfinite(x); })) return;
  problems.add("optimizer.ns_coefficients", "expected three numbers, got [{}]",
               fmt::join(c.ns_coefficients, ", "));
}

void declare(config::Section& s, LrSchedulerConfig& c) {
  s.meaning("learning rate over steps: warm-up, stable, decay");
  s.field("warmup_steps", c.warmup_steps).at_least(0).unit("steps").meaning("linear rise to optimizer.lr");
  s.field("total_steps", c.total_steps)
      .at_least(1)
      .unit("steps")
      .meaning("horizon of the schedule; null: training.steps");
  s.field("decay_ratio", c.decay_ratio)
      .range(0, 1)
      .meaning("share of the steps that decay; null: all after the warm-up");
  using Decay = LrSchedulerConfig::Decay;
  s.choice("decay_type", c.decay_type,
           {{"linear", Decay::linear}, {"sqrt", Decay::sqrt}, {"cosine", Decay::cosine}})
      .meaning("shape of the decay");
  s.field("min_lr_factor", c.min_lr_factor)
      .range(0, 1)
      .meaning("floor of the decay, as a factor of optimizer.lr");
  s.renamed("lr_min", "lr_scheduler.min_lr_factor");
}

}  // namespace ottava
