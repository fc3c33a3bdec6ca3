#include "core/optim/optimizer_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, ParamGroupConfig& c) {
  s.field("match", c.match).required().meaning("glob over parameter names");
  s.field("weight_decay", c.weight_decay)
      .at_least(0)
      .meaning("decay of these parameters; null: optimizer.weight_decay");
  s.field("lr_factor", c.lr_factor).at_least(0).meaning("their learning rate is the schedule's times this");
}

void declare(config::Section& s, OptimizerConfig& c) {
  s.meaning("what turns gradients into new weights");
  s.field("name", c.name)
      .one_of({"AdamW"})
      .refuse_value("Adam", "its decay is coupled to the gradient and trains differently; use AdamW")
      .meaning("update rule");
  s.field("lr", c.lr).at_least(0).meaning("peak learning rate");
  s.field("beta1", c.beta1).at_least(0).below(1).meaning("decay of the mean of gradients");
  s.field("beta2", c.beta2).at_least(0).below(1).meaning("decay of the mean of squared gradients");
  s.field("eps", c.eps).above(0).meaning("added to the root of the squared mean");
  s.field("weight_decay", c.weight_decay)
      .at_least(0)
      .meaning("decoupled decay, of every parameter unless param_groups says otherwise");
  s.choice("state_dtype", c.state_dtype, {{"float32", DType::f32}, {"bfloat16", DType::bf16}})
      .meaning("storage of both means; bfloat16 is rounded stochastically");
  s.list("param_groups", c.param_groups).meaning("exceptions by name pattern; the first match decides");
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
