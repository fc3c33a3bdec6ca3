#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Leaves out a step whose loss or gradient norm is far above those of the steps before it (OLMo-core's
/// skip_step_optimizer): with n >= window / 2 steps known, when value > mean + sigma * standard deviation of
/// the last `window` of them, without the step itself. Its values enter the window all the same, so that a
/// level that lasts is accepted.
struct SpikeRule {
  int64_t window = 128;
  double sigma = 0;  ///< 0: never skips
};
/// Why a step is skipped: what clip_factor() and skip_spike() leave in `skipped`.
enum Skip : int { kNotSkipped, kNotFinite, kLossSpike, kNormSpike };

/// To be called after clip_factor(). The loss is loss_sum * scalars[kLossGradient] / scalars[kLossScale]. A
/// step that clip_factor() skipped is left alone and enters nothing; a spike gets factor 0 and skipped =
/// kLossSpike or kNormSpike. No host synchronisation; sums in f64 in a fixed order.
struct SkipSpike {
  Tensor loss_sum;  ///< f32 [1], of all ranks
  Tensor window;    ///< f32 [2, rule.window]: losses, norms, that of step t in column t % window
  Tensor known;     ///< i64 [1]: steps that entered so far
  Tensor found;  ///< f32 [4] out: loss, its bound, norm, its bound; a bound of infinity where too little is
                 ///< known
  Tensor scalars, skipped;
};
void skip_spike(Stream& stream, const SkipSpike& args, const SpikeRule& rule);

}  // namespace ottava
