#pragma once

#include <cstdint>

namespace ottava {

/// What the loss is multiplied by, so that small gradients survive in a narrow format. Either constant (1:
/// none) or dynamic (arXiv:1710.03740): it starts at 2^16, doubles after 1000 consecutive steps without
/// overflow, halves on overflow, and stays within [1, 2^32]. The norm and the weights see unscaled gradients;
/// the caller skips a step that overflows.
class LossScale {
 public:
  static constexpr double kInitial = 65536, kLargest = 4294967296.0;
  static constexpr int64_t kGrowthInterval = 1000;

  /// Throws ConfigError unless scale is positive and finite.
  static LossScale constant(double scale);
  static LossScale dynamic();

  double value() const { return state_.scale; }
  bool is_dynamic() const { return is_dynamic_; }
  /// To be called once per step; `overflow`: a gradient was not finite.
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
