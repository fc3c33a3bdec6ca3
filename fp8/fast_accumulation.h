#pragma once

#include <cstdint>

namespace ottava::fp8 {

/// Which FP8 products the tensor cores of sm_89 and sm_90 sum fast, that is, to the end in their own 14 bits.
/// The sums of other products are promoted to f32 at intervals (128 products on sm_90), and those with block
/// scales always are. CPUs, emulation, and sm_100 and later sum in f32.
enum class FastAccumulation : uint8_t {
  forward,  ///< forward products; sums of gradients are promoted
  all,
  none,
};

}  // namespace ottava::fp8
