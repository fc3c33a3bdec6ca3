#pragma once

namespace ottava {

/// What changes from step to step: f32 values at these indices of one tensor. They are on the device so that
/// a captured graph can be replayed.
enum StepScalar : int {
  kLearningRate,
  kLossScale,  ///< what gradients were multiplied by (loss scaling); 1 without
  /// d(scaled loss) / d(sum of token losses) = loss scale / valid tokens of the whole step
  kLossGradient,
  /// written by clip_factor(): 1 / loss scale * min(1, max_norm / (norm + 1e-6)); 0 skips the step
  kGradientFactor,
  kGradientNorm,  ///< written by clip_factor(): the unscaled global norm before clipping
  kStepScalars
};

}  // namespace ottava
