#pragma once

#include <span>

#include "core/cpu/isa.h"
#include "core/ops/elementwise.h"

namespace ottava {

/// n elements; pointers are of the kernel's element type and may alias at the same index.
struct ElementwiseKernels {
  void (*to_bf16)(const float* source, bf16* destination, int64_t n);
  void (*to_f32)(const bf16* source, float* destination, int64_t n);
  using Add = void(const void* a, const void* b, void* out, int64_t n);
  cpu::FloatKernel<Add> add;
  Add* add_bf16;  ///< b is bf16, a and out are f32
  cpu::FloatKernel<void(std::span<const void* const> addends, void* out, int64_t begin, int64_t end)>
      add_in_order;
  cpu::FloatKernel<double(const void* x, int64_t n)> sum;
};

namespace cuda {
void cast(Stream& stream, const Tensor& source, const Tensor& destination);
void fill_zero(Stream& stream, const Tensor& tensor);
void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out);
void add_in_order(Stream& stream, const AddInOrder& args);
void copy_columns(Stream& stream, const MatrixRows& from, const MatrixRows& to);
void sum_into(Stream& stream, const Tensor& x, const Tensor& out);
}  // namespace cuda

}  // namespace ottava

OTTAVA_CPU_KERNELS(ottava::ElementwiseKernels, elementwise_kernels)
