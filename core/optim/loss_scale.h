#pragma once

#include <cstdint>

namespace ottava {

/// What the loss is multiplied by, so that small gradients survive in a narrow format: a constant (1 is
/// none), or dynamic (arXiv:1710.03740): starts at 2^16, doubles after 1000 steps in a row without overflow,
/// halves on overflow, and stays within [1, 2^32]. The norm and the weights see unscaled gradients; a step
/// that overflows is skipped by its caller.
class LossScale {
 public:
  static constexpr double kInitial = 65536, kLargest = 4294967296.0;
  static constexpr int64_t kGrowthInterval = 1000;

  /// Throws ConfigError unless scale is positive and finite.
  static LossScale constant(double scale);
  static LossScale dynamic();

  double value() const { return state_.scale; }
  bool is_dynamic() const { return is_dynamic_; }
  /// To be called once per step, with whether a gradient was not finite.
  void update(bool overflow);

  /// What a checkpoint keeps.
  struct State {
    double scale = 1;
    int64_t good_steps = 0;  ///< since the last change
    bool operator==(const State&) const = default;
  };
  State state() const { return state_; }
  /// Continues from a checkpoint. A constant scale keeps its own value, which the configuration decides.
  /// Throws FileError for a state that no run can have.
  void restore(State state);

 private:
  LossScale(State state, bool is_dynamic) : state_(state), is_dynamic_(is_dynamic) {}
  State state_;
  bool is_dynamic_;
};

}  // namespace ottava
