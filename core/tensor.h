#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace ottava {

/// Up to four extents, outermost first. Extents are >= 0; rank 0 is a scalar of one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  /// Product of all extents.
  int64_t numel() const;
  /// Product of all extents but the last: the rows of the matrix that most operations see.
  int64_t rows() const;
  /// The last extent (1 for a scalar).
  int64_t cols() const;
  /// The same shape with another outermost extent; a scalar stays a scalar.
  Shape with_first(int64_t extent) const {
    Shape shape = *this;
    shape.dims_[0] = extent;
    return shape;
  }
  bool operator==(const Shape& other) const = default;

 private:
  std::array<int64_t, 4> dims_ = {};
  int rank_ = 0;
};

/// "[128, 4096]".
std::string to_string(const Shape& shape);

/// A non-owning, contiguous, row-major view. `data` is a host pointer on `cpu`, a device pointer on `cuda`
/// and null on `meta`. Copying a Tensor copies the view, never the elements.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return shape.numel() * size_of(dtype); }
  int64_t rows() const { return shape.rows(); }
  int64_t cols() const { return shape.cols(); }
  /// True for a view that was never set: an argument that was left out.
  bool empty() const { return data == nullptr && shape.rank() == 0; }

  /// Address of an element, counted row by row; null if `data` is.
  char* at(int64_t element) const {
    return data ? static_cast<char*>(data) + element * size_of(dtype) : nullptr;
  }

  /// Typed pointer. Throws ShapeError if T is not the element type; uint8_t also serves for the one-byte
  /// floats.
  template <class T>
  T* as() const {
    bool matches = DTypeOf<T>::value == dtype || (sizeof(T) == 1 && size_of(dtype) == 1);
    if (!matches) {
      fail<ShapeError>("tensor", "element type is {}, accessed as {}", name_of(dtype),
                       name_of(DTypeOf<T>::value));
    }
    return static_cast<T*>(data);
  }

  /// The same elements under another shape. Throws ShapeError if the number of elements differs.
  Tensor reshape(Shape shape) const;
  /// Rows [begin, end) of the outermost extent.
  Tensor slice(int64_t begin, int64_t end) const;
};

/// View over elements that the caller owns.
template <class T>
Tensor view_of(T* data, Shape shape) {
  return Tensor{const_cast<void*>(static_cast<const void*>(data)), DTypeOf<std::remove_const_t<T>>::value,
                shape};
}

/// "bf16 [128, 4096]", for messages.
std::string describe(const Tensor& tensor);

}  // namespace ottava
