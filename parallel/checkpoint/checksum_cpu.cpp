#include "parallel/checkpoint/checksum_kernels.h"

// XXH64 of 4 bytes, written out so that the compiler makes vectors of it (https://github.com/Cyan4973/xxHash,
// doc/xxhash_spec.md): four 64-bit products per element. A save's thread takes its time from the threads that
// train.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu,
                   kPrime3 = 0x165667B19E3779F9u, kPrime5 = 0x27D4EB2F165667C5u;

uint64_t hash(uint64_t bits, uint64_t seed) {
  uint64_t h = (seed + kPrime5 + 4) ^ (bits * kPrime1);
  h = (h << 23 | h >> 41) * kPrime2 + kPrime3;
  h = (h ^ h >> 33) * kPrime2;
  h = (h ^ h >> 29) * kPrime3;
  return h ^ h >> 32;
}

template <class Bits, bool copies>
uint64_t copying_sum(void* __restrict to, const void* __restrict stored, uint64_t first, int64_t count) {
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    const int64_t at = i * static_cast<int64_t>(sizeof bits);
    __builtin_memcpy(&bits, static_cast<const char*>(stored) + at, sizeof bits);
    if constexpr (copies) __builtin_memcpy(static_cast<char*>(to) + at, &bits, sizeof bits);
#if !defined(__AVX512DQ__)  // no vectors: a product of 64 bits would be three instructions
    asm("" : "+r"(bits));
#endif
    total += hash(bits, first + static_cast<uint64_t>(i));
  }
  return total;
}

template <class Bits>
uint64_t sum(const void* stored, uint64_t first, int64_t count) {
  return copying_sum<Bits, false>(nullptr, stored, first, count);
}

}  // namespace

checkpoint::ChecksumKernels checksum_kernels() {
  return {sum<uint16_t>, sum<uint32_t>, copying_sum<uint16_t, true>, copying_sum<uint32_t, true>};
}

}  // namespace ottava::cpu::OTTAVA_ISA
