#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace ottava {

/// What turns a gradient into a new weight: AdamW, or Muon, which works on whole matrices.
enum class UpdateRule { adamw, muon };

/// What an update rule keeps of each weight from step to step: AdamW's running means of gradients and of
/// their squares, and Muon's of gradients.
enum class Moment { exp_avg, exp_avg_sq, momentum };

/// A moment of a rule. It has the weight's shape and is cut among ranks as the weight is.
struct MomentTraits {
  Moment moment;
  std::string_view name;       ///< what follows the weight's in a checkpoint: NAME.exp_avg
  bool is_always_f32 = false;  ///< whatever optimizer.state_dtype says

  /// What it is stored in; `state`: optimizer.state_dtype.
  constexpr DType dtype(DType state) const { return is_always_f32 ? DType::f32 : state; }
};

/// What the rest of the program has to know of a rule, besides its formula. Memory, zeros at the start,
/// plans, and files of checkpoints follow from this.
struct UpdateRuleTraits {
  UpdateRule rule;
  std::string_view name;  ///< in configurations
  /// Of no other rule, so that a checkpoint's names tell which rule trained a parameter: where another did,
  /// moments begin at zero. At least one.
  std::span<const MomentTraits> moments;
  /// It takes no vectors, and optimizer.name gives it only the weight matrices of the blocks.
  bool is_for_matrices = false;
  /// An update depends on how many there were since the moments were zero, which checkpoints then keep
  /// (`moments_begun`) of parameters whose moments began later than the run.
  bool counts_updates = false;
  /// Said where weights that another rule has trained are trained further; may be empty.
  std::string_view caution = {};
};

inline constexpr MomentTraits kAdamwMoments[] = {{.moment = Moment::exp_avg, .name = "exp_avg"},
                                                 {.moment = Moment::exp_avg_sq, .name = "exp_avg_sq"}};
inline constexpr MomentTraits kMuonMoments[] = {
    {.moment = Moment::momentum, .name = "momentum", .is_always_f32 = true}};

/// All of them, in the order of UpdateRule.
inline constexpr UpdateRuleTraits kUpdateRules[] = {
    {.rule = UpdateRule::adamw, .name = "AdamW", .moments = kAdamwMoments, .counts_updates = true},
    {.rule = UpdateRule::muon,
     .name = "Muon",
     .moments = kMuonMoments,
     .is_for_matrices = true,
     .caution = "a model that AdamW trained gains little from Muon (arXiv:2502.16982, table 7)"}};

constexpr const UpdateRuleTraits& traits_of(UpdateRule rule) {
  return kUpdateRules[static_cast<size_t>(rule)];
}
constexpr std::span<const MomentTraits> moments_of(UpdateRule rule) { return traits_of(rule).moments; }

/// Bytes of a weight's moments; `state`: optimizer.state_dtype.
inline int64_t moment_bytes(UpdateRule rule, DType state) {
  int64_t sum = 0;
  for (const MomentTraits& m : moments_of(rule)) sum += size_of(m.dtype(state));
  return sum;
}

/// Moments of all rules.
inline constexpr size_t kMoments = [] {
  size_t count = 0;
  for (const UpdateRuleTraits& rule : kUpdateRules) count += rule.moments.size();
  return count;
}();

static_assert(
    [] {
      std::array<int, kMoments> rules{};  // that keep each moment
      for (size_t i = 0; i < std::size(kUpdateRules); ++i) {
        if (static_cast<size_t>(kUpdateRules[i].rule) != i || kUpdateRules[i].moments.empty()) return false;
        for (const MomentTraits& m : kUpdateRules[i].moments)
          if (++rules.at(static_cast<size_t>(m.moment)) > 1) return false;
      }
      return true;
    }(),
    "kUpdateRules has every rule in the order of UpdateRule, each with moments of its own");

/// A value for each moment. Those of moments that a parameter's rule does not keep stay as they begin.
template <class T>
class PerMoment {
 public:
  T& operator[](Moment m) { return values_[static_cast<size_t>(m)]; }
  const T& operator[](Moment m) const { return values_[static_cast<size_t>(m)]; }

 private:
  std::array<T, kMoments> values_{};
};

}  // namespace ottava
