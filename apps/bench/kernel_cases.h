#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/decide/workbench.h"
#include "core/ops/rope.h"
#include "core/stream.h"

namespace ottava {

/// Sizes of a training step: N = batch x sequence rows.
struct KernelShapes {
  int64_t batch = 2, sequence = 8192, dim = 4096, ffn = 14336, heads = 32, kv_heads = 8, head_dim = 128;
  int64_t vocabulary = 128256, loss_rows = 2048, parameters = 1 << 28;
  int64_t rows() const { return batch * sequence; }
  AttentionHeads attention_heads() const { return {heads, kv_heads, head_dim}; }
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
/// Operations of a BF16 training step. The first is the copy that others are compared with, the second the
/// matrix product.
std::vector<KernelCase> kernel_cases(const KernelShapes& shapes);
/// What FP8 adds: amaxes, quantizing on its own and as part of what makes the operand, the way back.
std::vector<KernelCase> float8_kernel_cases(const KernelShapes& shapes);
/// The matrix product of kernel_cases() in FP8, once for each kind of scale that the device multiplies with.
std::vector<KernelCase> float8_product_cases(const KernelShapes& shapes, Device device);
/// What cuDNN does instead of some of them; none where it was not built in. For GPUs.
std::vector<KernelCase> cudnn_kernel_cases(const KernelShapes& shapes);
/// All of these that a device has.
std::vector<KernelCase> all_kernel_cases(const KernelShapes& shapes, Device device);

}  // namespace ottava
