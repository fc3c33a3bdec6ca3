#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Skips a step whose loss or gradient norm is far above those of the steps before it (OLMo-core's
/// skip_step_optimizer): once n >= window / 2 steps are known, if the value > mean + sigma * standard
/// deviation of the last `window` of them, the step itself not included. Its values still enter the window,
/// so that a lasting new level is accepted.
struct SpikeRule {
  int64_t window = 128;
  double sigma = 0;  ///< 0 in a run that does not call skip_spike()
};
/// Why a step is skipped: the value that clip_factor() and skip_spike() write to `skipped`.
enum Skip : int { kNotSkipped, kNotFinite, kLossSpike, kNormSpike };

/// To be called after clip_factor(). The loss is loss_sum * scalars[kLossGradient] / scalars[kLossScale]. A
/// step that clip_factor() skipped is left alone and does not enter the window, nor does one whose loss or
/// norm is not finite; a spike gets factor 0 and skipped = kLossSpike or kNormSpike. No host synchronisation;
/// sums are f64 in a fixed order. Throws ShapeError.
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
