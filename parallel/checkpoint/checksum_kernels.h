#pragma once

#include <cstdint>

#include "core/cpu/isa.h"

namespace ottava::checkpoint {

/// element_checksum of `count` elements from index `first` on, by their size.
struct ChecksumKernels {
  using Sum = uint64_t(const void* stored, uint64_t first, int64_t count);
  Sum* of_2_bytes;
  Sum* of_4_bytes;
};

}  // namespace ottava::checkpoint

OTTAVA_CPU_KERNELS(ottava::checkpoint::ChecksumKernels, checksum_kernels)
