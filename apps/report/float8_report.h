#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/step/training_engine.h"

namespace ottava {

/// What became of one operand of a layer's FP8 products, over all ranks. Counts are since the last reading
/// and cover forward and backward in training; those of a weight count each time it was quantized.
struct Float8Operand {
  std::string layer;  ///< "layers.0.attention.wqkv"
  fp8::Role role = fp8::Role::x;
  fp8::RecipeName recipe = fp8::RecipeName::tensorwise;
  double amax = 0;  ///< of the last step, all micro-batches
  /// The smallest that was used; with recipe delayed, the next step's.
  double scale = 0;
  int64_t elements = 0;
  int64_t underflow = 0;   ///< elements other than zero that became zero
  int64_t saturation = 0;  ///< elements past the largest number
  double underflow_fraction() const { return elements > 0 ? static_cast<double>(underflow) / elements : 0; }
  double saturation_fraction() const { return elements > 0 ? static_cast<double>(saturation) / elements : 0; }
};

/// Reads the amaxes and counters of the engine's FP8 products, combines them over `control` (two all-reduces
/// of CPU tensors) and sets the counters to zero. All ranks make the call, after a step. Empty without FP8 or
/// without statistics.
std::vector<Float8Operand> read_float8(TrainingEngine& engine, Communicator& control);

/// "fp8/layers.0.attention.wqkv/x/amax", ".../scale", ".../underflow" and ".../saturation" (fractions), and
/// over all layers the largest fractions, "fp8/worst/x/underflow".
std::vector<std::pair<std::string, double>> float8_scalars(const std::vector<Float8Operand>& operands);

/// Warnings for people when quantizing loses too much.
class Float8Alerts {
 public:
  /// Thresholds are the configuration's, alert_*.
  explicit Float8Alerts(const Float8Config& config) : config_(config) {}

  /// One warning for each role and kind of loss that has become too large somewhere: the worst layers, their
  /// fractions and what to do. A layer is named again only after it has fallen to half the threshold, so one
  /// that hovers around the threshold is named once.
  std::vector<std::string> check(const std::vector<Float8Operand>& operands);

 private:
  Float8Config config_;
  std::set<std::string> raised_;
};

}  // namespace ottava
