#pragma once

#include <cstdint>

#include "core/cpu/isa.h"

namespace ottava::checkpoint {

/// element_checksum() of `count` elements from index `first` on, by element size; the copying ones also store
/// what they read.
struct ChecksumKernels {
  using Sum = uint64_t(const void* stored, uint64_t first, int64_t count);
  Sum *of_2_bytes, *of_4_bytes;
  using CopyingSum = uint64_t(void* to, const void* stored, uint64_t first, int64_t count);
  CopyingSum *copying_2_bytes, *copying_4_bytes;
};

}  // namespace ottava::checkpoint

OTTAVA_CPU_KERNELS(ottava::checkpoint::ChecksumKernels, checksum_kernels)
