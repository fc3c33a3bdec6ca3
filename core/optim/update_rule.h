#pragma once

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "core/dtype.h"
#include "core/error.h"

namespace ottava {

/// What turns a gradient into a new weight: AdamW, or Muon, which works on whole matrices.
enum class UpdateRule { adamw, muon };
/// All of them, by their names in configurations.
inline constexpr std::pair<std::string_view, UpdateRule> kUpdateRules[] = {{"AdamW", UpdateRule::adamw},
                                                                           {"Muon", UpdateRule::muon}};

/// What an update rule keeps of each weight from step to step: AdamW's running means of gradients and of
/// their squares, and Muon's of gradients.
enum class Moment { exp_avg, exp_avg_sq, momentum };

/// Those of a rule. Which of them shards have, and how much memory they take, follows from this list.
inline std::span<const Moment> moments_of(UpdateRule rule) {
  static constexpr std::array kAdamw{Moment::exp_avg, Moment::exp_avg_sq};
  static constexpr std::array kMuon{Moment::momentum};
  switch (rule) {
    case UpdateRule::adamw:
      return kAdamw;
    case UpdateRule::muon:
      return kMuon;
  }
  fail("optimizer", "update rule {} has no moments in moments_of()", static_cast<int>(rule));
}

/// "exp_avg", as in the names of a checkpoint's tensors.
inline std::string_view name_of(Moment moment) {
  static constexpr std::array<std::string_view, 3> kNames{"exp_avg", "exp_avg_sq", "momentum"};
  return kNames[static_cast<size_t>(moment)];
}

/// What it is stored in; `state`: optimizer.state_dtype.
inline DType dtype_of(Moment moment, DType state) { return moment == Moment::momentum ? DType::f32 : state; }

}  // namespace ottava
