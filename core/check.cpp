#include "core/check.h"

#include "core/error.h"

namespace ottava {

void check_float(std::string_view op, std::string_view name, const Tensor& tensor) {
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16) {
    fail<ShapeError>(op, "{} is {}, expected f32 or bf16", name, describe(tensor));
  }
}

void check_tensor(std::string_view op, std::string_view name, const Tensor& tensor, DType dtype,
                  Shape shape) {
  if (tensor.dtype != dtype || !(tensor.shape == shape)) {
    fail<ShapeError>(op, "{} is {}, expected {} {}", name, describe(tensor), name_of(dtype),
                     to_string(shape));
  }
}

void check_like(std::string_view op, std::string_view name, const Tensor& tensor, std::string_view like_name,
                const Tensor& like) {
  if (tensor.dtype != like.dtype || !(tensor.shape == like.shape)) {
    fail<ShapeError>(op, "{} is {}, expected {} (like {})", name, describe(tensor), describe(like),
                     like_name);
  }
}

}  // namespace ottava
