// Operations whose CUDA kernels are not written.
#include "core/error.h"
#include "core/ops/attention_kernels.h"
#include "core/ops/matmul_kernels.h"

namespace ottava::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "this operation has no CUDA kernel: use device cpu"); }
}  // namespace

void attention_backward(Stream&, const AttentionBackward&) { absent(); }
void attention_decode(Stream&, const AttentionDecode&) { absent(); }
void attention_forward(Stream&, const AttentionForward&) { absent(); }
int64_t attention_workspace_bytes(Pass, DType, AttentionHeads, int64_t, int64_t) { absent(); }
void matmul(Stream&, const Matmul&) { absent(); }
void set_matmul_workspace(Stream&, Tensor) { absent(); }

}  // namespace ottava::cuda
