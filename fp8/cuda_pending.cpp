// Operations whose CUDA kernels are not written.
#include "core/error.h"
#include "fp8/scaled_matmul_kernels.h"

namespace ottava::fp8::cuda {

void scaled_matmul(Stream&, const ScaledMatmul&) {
  fail<DeviceError>("cuda", "this operation has no CUDA kernel: use device cpu");
}

}  // namespace ottava::fp8::cuda
