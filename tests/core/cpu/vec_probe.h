#pragma once

#include <cstdint>

#include "core/cpu/isa.h"

namespace ottava::test {

/// Functions of core/cpu/vec.h over arrays of a multiple of 16 elements, for the instruction set in use.
struct VecProbe {
  void (*exp)(const float* x, float* y, int64_t n);
  float (*sum)(const float* x);  ///< of 16
  float (*max)(const float* x);  ///< of 16
};

}  // namespace ottava::test

OTTAVA_CPU_KERNELS(ottava::test::VecProbe, vec_probe)
