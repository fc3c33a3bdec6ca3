#pragma once

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

}  // namespace ottava
