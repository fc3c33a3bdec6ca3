#pragma once

#include <atomic>

#include "core/tensor.h"

namespace ottava {

/// Raises `amax`, u32 [1], to at least `bits`, unless it was left out. Safe from several threads.
inline void raise_amax(const Tensor& amax, uint32_t bits) {
  if (amax.empty()) return;
  std::atomic_ref<uint32_t> cell(*amax.as<uint32_t>());
  uint32_t seen = cell.load(std::memory_order_relaxed);
  while (seen < bits && !cell.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
  }
}

}  // namespace ottava
