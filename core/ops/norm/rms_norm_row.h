#pragma once

// RMSNorm of one row, for the kernel files of rms_norm (a row is a token), of qk_norm (a row is a head) and
// of whatever is fused with them. A row of C <= 16384 stays in the L1 or L2 cache between its two passes.

#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

template <class T>
inline float sum_of_squares(const T* x, int64_t cols) {
  Vec squares{};
  for_each_vec(cols, [&](int64_t c, auto lanes) {
    fetch_ahead(x + c);
    Vec h = load(x + c, lanes);
    squares += h * h;
  });
  return sum(squares);
}

/// out = a + b as stored, and the sum of its squares.
template <class T>
inline float add_and_sum_squares(const T* a, const T* b, T* out, int64_t cols) {
  Vec squares{};
  for_each_vec(cols, [&](int64_t c, auto lanes) {
    fetch_ahead(a + c), fetch_ahead(b + c), fetch_target_ahead(out + c);
    Vec h = rounded_to<T>(load(a + c, lanes) + load(b + c, lanes));
    store(out + c, h, lanes);
    squares += h * h;
  });
  return sum(squares);
}

inline float reciprocal_rms(float squares, int64_t cols, float eps) {
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(cols) + eps);
}

/// y = h * rstd * weight; raises amax to the bits of what is stored.
template <class T>
inline void normalise_row(const T* h, const T* weight, float rstd, T* y, int64_t cols, UVec& amax) {
  for_each_vec(cols, [&](int64_t c, auto lanes) {
    fetch_target_ahead(y + c);
    store_with_amax(y + c, load(h + c, lanes) * rstd * load(weight + c, lanes), lanes, amax);
  });
}

/// What one row's backward reads and writes; the formula is in core/ops/norm/rms_norm.h. `dweight` is
/// accumulated; `through` (the gradient beside the norm) may be null; dx may alias dy or through.
template <class T>
struct NormRow {
  const T* dy;
  const T* h;
  const T* weight;
  const T* through;
  T* dx;
  float* dweight;
};
template <class T>
inline void norm_row_backward(const NormRow<T>& row, float rstd, int64_t cols, UVec& amax) {
  Vec dot{};
  for_each_vec(cols, [&](int64_t c, auto lanes) {
    fetch_ahead(row.dy + c), fetch_ahead(row.h + c);
    dot += load(row.dy + c, lanes) * load(row.weight + c, lanes) * load(row.h + c, lanes);
  });
  const float slope = rstd * rstd * sum(dot) / static_cast<float>(cols);
  for_each_vec(cols, [&](int64_t c, auto lanes) {
    Vec g = load(row.dy + c, lanes), h = load(row.h + c, lanes), w = load(row.weight + c, lanes);
    if (row.through) fetch_ahead(row.through + c);
    fetch_target_ahead(row.dx + c);
    Vec through = row.through ? load(row.through + c, lanes) : Vec{};
    store(row.dweight + c, load(row.dweight + c, lanes) + g * h * rstd, lanes);
    store_with_amax(row.dx + c, rstd * (g * w - h * slope) + through, lanes, amax);
  });
}

}  // namespace ottava::cpu::OTTAVA_ISA
