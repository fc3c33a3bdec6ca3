#include "apps/train/skipped_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/counted.h"
#include "parallel/ranks/bootstrap.h"

namespace ottava {
namespace {

constexpr size_t kNamedRanks = 4;

// The first character sorts: a rank whose own losses or operands are not finite made what others were only
// sent.
enum Suspicion : char { own_loss = '0', own_operand = '1', own_gradient = '2', none = '3' };

Suspicion suspicion_of(bool loss, bool operands, bool gradients) {
  return loss ? own_loss : operands ? own_operand : gradients ? own_gradient : none;
}

std::string account_of(TrainingEngine& engine, int rank) {
  const std::vector<float> sums = engine.loss_after_each_micro_batch();
  const auto bad = std::find_if(sums.begin(), sums.end(), [](float sum) { return !std::isfinite(sum); });
  const std::string gradients = engine.non_finite_gradients();
  const std::string operands = engine.non_finite_operands();
  const Suspicion suspicion = suspicion_of(bad != sums.end(), !operands.empty(), !gradients.empty());
  std::string text = fmt::format("{}rank {}: ", static_cast<char>(suspicion), rank);
  if (bad != sums.end()) {
    text += fmt::format("loss {} in micro-batch {} of {}", *bad, bad - sums.begin() + 1, sums.size());
  } else {
    text +=
        fmt::format("loss finite in {}", sums.size() == 1 ? "its only micro-batch"
                                                          : fmt::format("all {} micro-batches", sums.size()));
  }
  if (!operands.empty()) text += ", FP8 operands not finite: " + operands;
  return text + (gradients.empty() ? ", gradients finite" : ", gradients not finite in " + gradients);
}

bool is_about_operands(const std::string& account) {
  return account.find(", FP8 operands not finite: ") != std::string::npos;
}

}  // namespace

std::string describe_skipped_step(TrainingEngine& engine, Communicator& control) {
  const std::string mine = account_of(engine, control.rank());
  std::vector<std::string> accounts{mine};
  if (control.size() > 1) accounts = CommunicatorBootstrap(control).all_gather(mine);
  std::stable_sort(accounts.begin(), accounts.end(),
                   [](const std::string& a, const std::string& b) { return a[0] < b[0]; });
  if (accounts.front()[0] == none)
    return "losses and gradients are finite on all ranks, the sum of their squares is not";
  std::string text;
  // Who raised a flag made the step stop; gradients alone are what others got from them.
  const Suspicion silent =
      std::any_of(accounts.begin(), accounts.end(), is_about_operands) ? own_gradient : none;
  const auto suspects = static_cast<size_t>(
      std::find_if(accounts.begin(), accounts.end(), [&](const std::string& a) { return a[0] >= silent; }) -
      accounts.begin());
  for (size_t i = 0; i < std::min(suspects, kNamedRanks); ++i)
    text += (i > 0 ? "; " : "") + accounts[i].substr(1);
  if (suspects > kNamedRanks) text += fmt::format("; and {}", counted(suspects - kNamedRanks, "more rank"));
  return text;
}

}  // namespace ottava
