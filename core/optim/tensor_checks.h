#pragma once

#include <string_view>

#include "core/error.h"
#include "core/tensor.h"

namespace ottava {

/// Throws ShapeError unless `tensor`, called `name` and belonging to entry `index` of an optimizer's list,
/// has this dtype and shape.
inline void require(std::string_view op, size_t index, std::string_view name, const Tensor& tensor,
                    DType dtype, const Shape& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return;
  fail<ShapeError>(op, "tensor {}: {} is {}, expected {} {}", index, name, describe(tensor), name_of(dtype),
                   to_string(shape));
}
/// The same for f32 or bf16.
inline void require_float(std::string_view op, size_t index, std::string_view name, const Tensor& tensor,
                          const Shape& shape) {
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16)
    fail<ShapeError>(op, "tensor {}: {} is {}, expected f32 or bf16", index, name, describe(tensor));
  require(op, index, name, tensor, tensor.dtype, shape);
}

}  // namespace ottava
