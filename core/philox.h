#pragma once

#include <array>
#include <cstdint>

namespace ottava {

/// Philox 4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
/// SC 2011): a fixed, portable function of (counter, key). Nothing is stepped, so element i of a sequence
/// costs the same wherever it is computed, and every layout and device draws the same numbers. Published test
/// vectors are in the tests.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// 128 random bits for `index` of the sequence `stream` under `seed`: counter = {index, stream}, key = seed,
/// low words first. Streams are independent sequences: a hash of a tensor's name, an epoch, a step.
struct PhiloxStream {
  uint64_t seed = 0;
  uint64_t stream = 0;

  constexpr std::array<uint32_t, 4> bits(uint64_t index) const {
    return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  /// 64 random bits, element `index`; two elements share one Philox call.
  constexpr uint64_t word(uint64_t index) const {
    std::array<uint32_t, 4> b = bits(index / 2);
    return index % 2 == 0 ? uint64_t{b[1]} << 32 | b[0] : uint64_t{b[3]} << 32 | b[2];
  }
  /// Uniform in the open interval (0, 1), symmetric around 1/2 and exact: (k + 1/2) / 2^52. Neither 0 nor 1
  /// ever comes out, so an inverse CDF may be applied to it.
  constexpr double uniform(uint64_t index) const {
    return (static_cast<double>(word(index) >> 12) + 0.5) * 0x1p-52;
  }
  /// Integer in [0, n), n >= 1, by a 64 x 64 -> 128 bit multiply. The bias is below n / 2^64.
  constexpr uint64_t below(uint64_t n, uint64_t index) const {
    uint64_t x = word(index), x0 = x & 0xffffffffu, x1 = x >> 32, n0 = n & 0xffffffffu, n1 = n >> 32;
    uint64_t middle = x1 * n0 + (x0 * n0 >> 32), carry = x0 * n1 + (middle & 0xffffffffu);
    return x1 * n1 + (middle >> 32) + (carry >> 32);
  }
};

}  // namespace ottava
