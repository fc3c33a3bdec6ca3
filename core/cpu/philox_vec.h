#pragma once

// Sixteen Philox counters at a time, for kernel files: the same bits as PhiloxStream of core/philox.h.

#include "core/cpu/vec.h"

namespace ottava::cpu::OTTAVA_ISA {

typedef uint64_t UWide __attribute__((vector_size(128)));

struct Product {
  UVec low, high;
};
inline Product multiply(UVec a, uint32_t b) {
  UWide product = __builtin_convertvector(a, UWide) * uint64_t{b};
  return {__builtin_convertvector(product, UVec), __builtin_convertvector(product >> 32, UVec)};
}

/// words[4 i + j] = word j of PhiloxStream{seed, stream}.bits(first + i), i in [0, 16).
inline void philox_16(uint64_t seed, uint64_t stream, uint64_t first, uint32_t* words) {
  const UVec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  UVec c0 = lane + static_cast<uint32_t>(first);
  UVec carry = bits_as<UVec>(c0 < lane) & 1u;
  UVec c1 = carry + static_cast<uint32_t>(first >> 32);
  UVec c2 = UVec{} + static_cast<uint32_t>(stream), c3 = UVec{} + static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    Product a = multiply(c0, 0xD2511F53u), b = multiply(c2, 0xCD9E8D57u);
    c0 = b.high ^ c1 ^ k0;
    c1 = b.low;
    c2 = a.high ^ c3 ^ k1;
    c3 = a.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const UVec columns[4] = {c0, c1, c2, c3};
  uint32_t table[4][kLanes];
  __builtin_memcpy(table, columns, sizeof table);
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < 4; ++j) words[4 * i + j] = table[j][i];
  }
}

}  // namespace ottava::cpu::OTTAVA_ISA
