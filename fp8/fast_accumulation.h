#pragma once

#include <cstdint>

namespace ottava::fp8 {

/// Which FP8 products the tensor cores of sm_89 and sm_90 sum fast: with their own 14 bits to the end. Others
/// are promoted to f32 every so often (128 products on sm_90), those with scales of blocks always. A CPU,
/// what is emulated and sm_100 on sum in f32.
enum class FastAccumulation : uint8_t {
  forward,  ///< gradients are promoted
  all,
  none,
};

}  // namespace ottava::fp8
