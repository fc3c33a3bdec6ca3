#pragma once

#include <cstdint>

namespace ottava::fp8 {

/// Which FP8 products tensor cores sum fast: 14 bits between promotions to f32. Those with scales of blocks
/// never do, a CPU and what is emulated sum in f32.
enum class FastAccumulation : uint8_t {
  forward,  ///< gradients are summed exactly
  all,
  none,
};

}  // namespace ottava::fp8
