#pragma once

#include <atomic>
#include <string_view>

#include "core/tensor.h"

// Argument checks shared by all operations: each throws ShapeError with one sentence of the form
// `[op] y is bf16 [4, 8], expected bf16 [4, 16] (like x)`.
namespace ottava {

void check_float(std::string_view op, std::string_view name, const Tensor& tensor);
void check_tensor(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype, Shape shape);
void check_like(std::string_view op, std::string_view name, const Tensor& tensor, std::string_view like_name,
                const Tensor& like);
/// check_tensor() for a tensor that may be left out.
inline void check_optional(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype,
                           Shape shape) {
  if (!tensor.empty()) check_tensor(op, name, tensor, dtype, shape);
}

/// Raises `amax`, u32 [1], to at least `bits`, unless it was left out. Safe from several threads.
inline void raise_amax(const Tensor& amax, uint32_t bits) {
  if (amax.empty()) return;
  std::atomic_ref<uint32_t> cell(*amax.as<uint32_t>());
  uint32_t seen = cell.load(std::memory_order_relaxed);
  while (seen < bits && !cell.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
  }
}

}  // namespace ottava
