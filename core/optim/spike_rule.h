#pragma once

#include <cmath>
#include <cstdint>

#include "core/optim/spike.h"
#include "core/optim/step_scalars.h"

#if defined(__CUDACC__)
#define OTTAVA_BOTH __host__ __device__
#else
#define OTTAVA_BOTH
#endif

namespace ottava {

/// Memory of skip_spike(), for one thread that can read it: of the host, or in a kernel.
struct SpikeMemory {
  const float* loss_sum;
  float* window;
  int64_t* known;
  float *found, *scalars;
  int32_t* skipped;
};

/// The largest value that is not a spike.
OTTAVA_BOTH inline float spike_bound(const float* values, int64_t n, int64_t window, double sigma) {
  if (2 * n < window || n < 2) return INFINITY;
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(values[i]);
  const double mean = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    const double difference = static_cast<double>(values[i]) - mean;
    squares = fma(difference, difference, squares);
  }
  return static_cast<float>(fma(sigma, sqrt(squares / static_cast<double>(n - 1)), mean));
}

OTTAVA_BOTH inline bool is_finite(float x) { return x > -INFINITY && x < INFINITY; }

OTTAVA_BOTH inline void apply_spike_rule(const SpikeMemory& m, int64_t window, double sigma) {
  if (*m.skipped != kNotSkipped) return;
  const int64_t n = *m.known < window ? *m.known : window, at = *m.known % window;
  m.found[0] = *m.loss_sum * m.scalars[kLossGradient] / m.scalars[kLossScale];
  m.found[1] = spike_bound(m.window, n, window, sigma);
  m.found[2] = m.scalars[kGradientNorm];
  m.found[3] = spike_bound(m.window + window, n, window, sigma);
  // A NaN in the window would make its bounds NaN, and no step a spike, until it left.
  if (is_finite(m.found[0]) && is_finite(m.found[2])) {
    m.window[at] = m.found[0];
    m.window[window + at] = m.found[2];
    ++*m.known;
  }
  if (m.found[0] > m.found[1]) {
    *m.skipped = kLossSpike;
  } else if (m.found[2] > m.found[3]) {
    *m.skipped = kNormSpike;
  }
  if (*m.skipped != kNotSkipped) m.scalars[kGradientFactor] = 0;
}

inline SpikeMemory memory_of(const SkipSpike& a) {
  return {static_cast<const float*>(a.loss_sum.data), static_cast<float*>(a.window.data),
          static_cast<int64_t*>(a.known.data),        static_cast<float*>(a.found.data),
          static_cast<float*>(a.scalars.data),        static_cast<int32_t*>(a.skipped.data)};
}

namespace cuda {
void skip_spike(Stream& stream, const SkipSpike& args, const SpikeRule& rule);
}  // namespace cuda

}  // namespace ottava
