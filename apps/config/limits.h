#pragma once

#include <cstdint>

// Far beyond every honest run; products of two of them, and sums of such products, stay within 64 bits.
namespace ottava {

/// Of a local batch: matrices of so many rows keep far from the limit of 64 bits. Also of one sequence.
inline constexpr int64_t kMostTokens = 1 << 30;
/// Of a run.
inline constexpr int64_t kMostSteps = 1 << 30;

}  // namespace ottava
