#pragma once

#include <cstdint>

namespace ottava {

/// How many pieces of `size` hold `count` things; the last may be shorter. Of numbers that are not negative.
constexpr int64_t pieces_of(int64_t count, int64_t size) { return (count + size - 1) / size; }
/// The lowest multiple of `of` that is at least n.
constexpr int64_t round_up(int64_t n, int64_t of) { return pieces_of(n, of) * of; }

}  // namespace ottava
