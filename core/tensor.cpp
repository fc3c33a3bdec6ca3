#include "core/tensor.h"

namespace ottava {

Shape::Shape(std::initializer_list<int64_t> dims) {
  if (dims.size() > dims_.size())
    fail<ShapeError>("shape", "{} extents given, at most 4 are supported", dims.size());
  for (int64_t d : dims) {
    if (d < 0) fail<ShapeError>("shape", "extent {} is negative", d);
    dims_[rank_++] = d;
  }
}

int64_t Shape::numel() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= (*this)[i];
  return n;
}

int64_t Shape::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank_; ++i) n *= (*this)[i];
  return n;
}

int64_t Shape::cols() const { return rank_ == 0 ? 1 : (*this)[rank_ - 1]; }

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Tensor Tensor::reshape(Shape to) const {
  if (to.numel() != numel()) {
    fail<ShapeError>("reshape", "{} has {} elements, {} has {}", to_string(shape), numel(), to_string(to),
                     to.numel());
  }
  return Tensor{data, dtype, to};
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  if (shape.rank() == 0 || begin < 0 || end < begin || end > shape[0]) {
    fail<ShapeError>("slice", "rows [{}, {}) of {}", begin, end, to_string(shape));
  }
  int64_t row = shape[0] == 0 ? 0 : numel() / shape[0];
  return Tensor{at(begin * row), dtype, shape.with_first(end - begin)};
}

std::string describe(const Tensor& tensor) {
  return std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape);
}

}  // namespace ottava
