#include "apps/train/skipped_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "apps/step/non_finite.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "core/text/listed.h"
#include "parallel/comm/bootstrap.h"

namespace ottava {
namespace {

constexpr size_t kNamedRanks = 4;

/// In the order in which accounts are told: a rank whose own losses or operands are not finite made what the
/// others only received.
enum class Suspicion : char { own_loss, own_operand, own_gradient, none };

/// What one rank has to say.
struct Account {
  Suspicion suspicion = Suspicion::none;
  bool names_operands = false;
  std::string text;

  std::string packed() const {
    return std::string{static_cast<char>(suspicion), static_cast<char>(names_operands)} + text;
  }
  static Account unpacked(const std::string& p) {
    return {static_cast<Suspicion>(p[0]), p[1] != 0, p.substr(2)};
  }
};

Account account_of(TrainingEngine& engine, int rank) {
  const std::vector<float> sums = engine.loss_after_each_micro_batch();
  const auto bad = std::ranges::find_if(sums, [](float sum) { return !std::isfinite(sum); });
  const std::string gradients = non_finite_gradients(engine);
  const std::string operands = non_finite_operands(engine);
  std::string text = fmt::format("rank {}: ", rank);
  if (sums.empty()) {
    text += "no loss on its stages";
  } else if (bad != sums.end()) {
    text += fmt::format("loss {} in micro-batch {} of {}", unsigned_nan(*bad), bad - sums.begin() + 1,
                        sums.size());
  } else {
    text +=
        fmt::format("loss finite in {}", sums.size() == 1 ? "its only micro-batch"
                                                          : fmt::format("all {} micro-batches", sums.size()));
  }
  if (!operands.empty()) text += ", FP8 operands not finite: " + operands;
  text += gradients.empty() ? ", gradients finite" : ", gradients not finite in " + gradients;
  const Suspicion suspicion = bad != sums.end()    ? Suspicion::own_loss
                              : !operands.empty()  ? Suspicion::own_operand
                              : !gradients.empty() ? Suspicion::own_gradient
                                                   : Suspicion::none;
  return {.suspicion = suspicion, .names_operands = !operands.empty(), .text = std::move(text)};
}

}  // namespace

std::string describe_vanishing(const StepOutputs& out, const TrainingConfig& config) {
  return fmt::format(
      "training.max_norm {:g} / gradient norm {:g} / loss scale {:g} is too small for float32; {}",
      config.max_norm, out.grad_norm, out.loss_scale,
      config.constant_loss_scale().value_or(1) > 1 ? "lower training.loss_scale or raise training.max_norm"
                                                   : "raise training.max_norm");
}

std::string describe_zero_gradient(const GlobalLoss& loss) {
  return fmt::format(
      "the gradient norm is exactly 0 although {} {} a mean loss of {:.4f}, so nothing is learnt any more: "
      "activations have probably grown until their squares overflow float32, which norms take for 0; begin "
      "anew, or from a checkpoint of before the loss rose, with a lower optimizer.lr or more "
      "lr_scheduler.warmup_steps",
      counted(static_cast<int64_t>(loss.tokens), "token"), loss.tokens == 1 ? "has" : "have", loss.mean);
}

std::string describe_spike(const StepOutputs& out, const SpikeRule& rule) {
  const bool is_loss = out.why == kLossSpike;
  const int64_t before = out.spikes.known - std::isfinite(out.spike[0]);  // an infinite loss entered nothing
  return fmt::format(
      "its {} {:.4f} is above {:.4f}, the mean of the last {} plus {:g} standard deviations "
      "(training.skip_spikes)",
      is_loss ? "loss" : "gradient norm", out.spike[is_loss ? 0 : 2], out.spike[is_loss ? 1 : 3],
      counted(std::min(before, rule.window), "step"), rule.sigma);
}

std::string describe_skipped_step(TrainingEngine& engine, Communicator& control) {
  std::vector<Account> accounts{account_of(engine, control.rank())};
  if (control.size() > 1) {
    const std::vector<std::string> all = CommunicatorBootstrap(control).all_gather(accounts[0].packed());
    accounts.clear();
    std::ranges::transform(all, std::back_inserter(accounts), Account::unpacked);
  }
  std::ranges::stable_sort(accounts, {}, &Account::suspicion);
  if (accounts.front().suspicion == Suspicion::none)
    return "losses and gradients are finite on all ranks, but the sum of their squares is not";
  // If a flag was raised, ranks with only gradients received them from the rank that raised it.
  const Suspicion silent =
      std::ranges::any_of(accounts, &Account::names_operands) ? Suspicion::own_gradient : Suspicion::none;
  const size_t suspects =
      std::ranges::find_if(accounts, [&](const Account& a) { return a.suspicion >= silent; }) -
      accounts.begin();
  std::string text;
  for (size_t i = 0; i < std::min(suspects, kNamedRanks); ++i) add_item(text, accounts[i].text, "; ");
  if (suspects > kNamedRanks) text += fmt::format("; and {}", counted(suspects - kNamedRanks, "more rank"));
  return text;
}

}  // namespace ottava
