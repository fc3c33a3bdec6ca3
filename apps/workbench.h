#pragma once

#include <vector>

#include "core/buffer.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace ottava {

/// Tensors of one measurement: in memory filled with numbers of both signs around one, or without any on
/// `meta`.
class Workbench {
 public:
  /// `device` meta: tensors have shapes only.
  explicit Workbench(Device device);
  /// f32, bf16 or one-byte floats, which are finite.
  Tensor tensor(DType dtype, Shape shape);
  /// i32, below `limit`, in no order.
  Tensor indices(int64_t count, int64_t limit);
  Tensor zeros(DType dtype, Shape shape);
  /// Scales that change nothing: f32, or e8m0.
  Tensor ones(DType dtype, Shape shape);

 private:
  Tensor allocate(DType dtype, Shape shape);
  void fill(const Tensor& tensor, const void* pattern, int64_t pattern_bytes);
  Device device_;
  std::vector<Buffer> buffers_;
};

}  // namespace ottava
