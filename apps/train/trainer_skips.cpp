#include <algorithm>
#include <cmath>

#include "apps/step/global_loss.h"
#include "apps/train/skipped_step.h"
#include "apps/train/trainer.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "parallel/comm/agree.h"

// What Trainer says and does of steps that were skipped, or changed nothing.

namespace ottava {

void Trainer::check_health(const StepOutputs& out) {
  if (out.grad_norm == 0) warn_of_zero_gradient(out);
  if (!out.skipped) return;
  if (out.why != kNotFinite) {
    const std::string spike = describe_spike(out, experiment_.shape.spikes);
    events_.add("skipped", state_.step, spike);
    if (ranks_.is_first())
      log::warning("step {} was skipped: {}; weights and optimizer state are unchanged", state_.step, spike);
    return;
  }
  vanishing_ = std::isfinite(out.grad_norm) ? describe_vanishing(out, config_.training) : "";
  const bool vanishes = !vanishing_.empty();
  const std::string where = vanishes ? vanishing_ : describe_skipped_step(*engine_, *ranks_.control);
  events_.add("skipped", state_.step, where);
  if (ranks_.is_first()) {
    log::warning(
        "step {} was skipped: {}; weights and optimizer state are unchanged; {}", state_.step,
        vanishes ? "what gradients would be multiplied by vanishes" : "the gradient norm is not finite",
        where);
  }
  const int64_t limit = config_.training.max_consecutive_skipped_steps;
  if (state_.consecutive_skips <= limit) return;
  finish_save(true);  // all ranks end here, and it may be the checkpoint to go back to
  const std::string back = vanishes ? "" : checkpoints_->ways_back(state_.step - state_.consecutive_skips);
  // Rank 0 may not have logged the step yet; from here on no rank needs another for what it says.
  meet_before_refusing(*ranks_.control);
  const std::string steps = counted(state_.consecutive_skips, "consecutive step");
  if (vanishes) {
    fail<NumericsError>("training",
                        "{} {} skipped (training.max_consecutive_skipped_steps is {}), the last because {}",
                        steps, state_.consecutive_skips == 1 ? "was" : "were", limit, vanishing_);
  }
  fail<NumericsError>("training",
                      "{} had non-finite gradients (training.max_consecutive_skipped_steps is {}): lower "
                      "optimizer.lr, raise lr_scheduler.warmup_steps, or check the data after sample {}{}",
                      steps, limit, first_skipped_sample(), back);
}

// The norm is of all ranks, so that all come here together. Without tokens, and where their loss is 0, it is
// right.
void Trainer::warn_of_zero_gradient(const StepOutputs& out) {
  if (has_zero_gradient_) return;
  const GlobalLoss loss = global_loss(ranks_, out.loss_sum, data_->valid_tokens());
  if (loss.mean == 0) return;
  has_zero_gradient_ = true;
  const std::string text = describe_zero_gradient(loss);
  events_.add("alert", state_.step, text);
  if (ranks_.is_first()) log::warning("step {}: {}", state_.step, text);
}

// Of the consecutive skips, some of which may be of the run before, with batches of another size.
int64_t Trainer::first_skipped_sample() const {
  const int64_t here = std::min(state_.consecutive_skips, steps_here_),
                before = state_.consecutive_skips - here,
                samples = here * experiment_.global_batch + before * begins_with_.sequences_per_step;
  return std::max<int64_t>(state_.data_position - samples, 0);
}

void Trainer::warn_of_skips_at_end() {
  const int64_t skips = state_.consecutive_skips;
  if (skips == 0) return;
  const int64_t step = state_.step - skips;
  const std::string back = vanishing_.empty() ? checkpoints_->ways_back(step) : "";
  if (!ranks_.is_first()) return;
  const std::string_view were = skips == 1 ? "was" : "were";
  if (!vanishing_.empty()) {
    log::warning(
        "the run ends with {} that {} skipped, the last because {}: its weights are those of step {}",
        counted(skips, "step"), were, vanishing_, step);
    return;
  }
  log::warning(
      "the run ends with {} that had non-finite gradients and {} skipped: its weights are those of step {} "
      "and may be broken{}",
      counted(skips, "step"), were, step, back);
}

}  // namespace ottava
