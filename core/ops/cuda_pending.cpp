// Operations whose CUDA kernels are not written.
#include "core/error.h"
#include "core/ops/matmul_kernels.h"

namespace ottava::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "this operation has no CUDA kernel: use device cpu"); }
}  // namespace

void matmul(Stream&, const Matmul&) { absent(); }
void set_matmul_workspace(Stream&, Tensor) { absent(); }

}  // namespace ottava::cuda
