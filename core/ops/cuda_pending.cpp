// Operations whose CUDA kernels are not written.
#include "core/error.h"
#include "core/ops/attention_kernels.h"
#include "core/ops/matmul_kernels.h"
#include "core/ops/qk_norm_kernels.h"
#include "core/optim/adamw_kernels.h"
#include "core/optim/grad_norm_kernels.h"

namespace ottava::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "this operation has no CUDA kernel: use device cpu"); }
}  // namespace

void add_bias(Stream&, const Tensor&, const Tensor&) { absent(); }
void attention_backward(Stream&, const AttentionBackward&) { absent(); }
void attention_decode(Stream&, const AttentionDecode&) { absent(); }
void attention_forward(Stream&, const AttentionForward&) { absent(); }
int64_t attention_workspace_bytes(Pass, DType, AttentionHeads, int64_t, int64_t) { absent(); }
void bias_gradient(Stream&, const Tensor&, const Tensor&) { absent(); }
void adamw(Stream&, const std::vector<AdamwTensor>&, const AdamwHyper&, const Tensor&, const Tensor&) { absent(); }
void clip_factor(Stream&, const Tensor&, float, const Tensor&, const Tensor&) { absent(); }
void matmul(Stream&, const Matmul&) { absent(); }
void grad_norm_squared(Stream&, const std::vector<Tensor>&, const Tensor&, const Tensor&) { absent(); }
void qk_norm_backward(Stream&, const QkNormBackward&) { absent(); }
void qk_norm_forward(Stream&, const QkNormForward&) { absent(); }
void set_matmul_workspace(Stream&, Tensor) { absent(); }

}  // namespace ottava::cuda
