#pragma once

#include <functional>
#include <string>
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
  Tensor tensor(DType dtype, Shape shape);
  /// i32, below `limit`, in no order.
  Tensor indices(int64_t count, int64_t limit);
  Tensor zeros(DType dtype, Shape shape);

 private:
  Tensor allocate(DType dtype, Shape shape);
  void fill(const Tensor& tensor, const void* pattern, int64_t pattern_bytes);
  Device device_;
  std::vector<Buffer> buffers_;
};

/// Sizes of a training step: N = batch x sequence rows.
struct KernelShapes {
  int64_t batch = 2, sequence = 8192, dim = 4096, ffn = 14336, heads = 32, kv_heads = 8, head_dim = 128;
  int64_t vocabulary = 128256, loss_rows = 2048, parameters = 1 << 28;
  int64_t rows() const { return batch * sequence; }
};
/// An eighth of a laptop's second.
KernelShapes small_kernel_shapes();

enum class Bound { copy, gemm };
struct KernelCase {
  std::string name;
  Bound bound = Bound::copy;  ///< which measured peak it is up against
  /// Makes the tensors on the bench and returns the call. `target` is the stream it will run on, for
  /// workspaces.
  std::function<std::function<void(Stream&)>(Workbench&, Stream& target)> prepare;
};
/// Every operation with a kernel, as a BF16 training step calls it. The first is the copy that others are
/// compared with, the second the matrix product.
std::vector<KernelCase> kernel_cases(const KernelShapes& shapes);
/// What cuDNN does instead of some of them; none where it was not built in. For GPUs.
std::vector<KernelCase> cudnn_kernel_cases(const KernelShapes& shapes);

}  // namespace ottava
