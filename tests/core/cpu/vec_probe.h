#pragma once

#include <cstdint>

#include "core/cpu/isa.h"

namespace ottava::test {

/// Functions of core/cpu/vec.h and core/cpu/exponentials.h over arrays of a multiple of 16 elements, for the
/// instruction set in use.
struct VecProbe {
  using OfArray = void(const float* x, float* y, int64_t n);
  OfArray *exp, *exp2, *exp2_for_bf16;
  float (*sum)(const float* x);  ///< of 16
  float (*max)(const float* x);  ///< of 16
  /// Of sixteen words: those that swapped<1>, <2>, <4> and <8> make of a; zip_low, zip_high, zip_pairs_low
  /// and zip_pairs_high of a and b. 8 x 16.
  void (*shuffles)(const uint32_t* a, const uint32_t* b, uint32_t* out);
  /// Of sixteen words: what widen() makes of narrow() and of narrow_to_bytes(). 2 x 16.
  void (*narrowed)(const uint32_t* a, uint32_t* out);
  double (*wide_sum)(const float* x);                 ///< of 16, in f64
  void (*roots)(const float* x, float* y);            ///< of 16
  void (*kept)(const float* x, int count, float* y);  ///< of 16: the first, and 7 elsewhere
};

}  // namespace ottava::test

OTTAVA_CPU_KERNELS(ottava::test::VecProbe, vec_probe)
