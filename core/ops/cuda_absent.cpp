// A build without CUDA: a cuda Stream cannot be made there, so these are never reached.
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/ops/attention/attention_kernels.h"
#include "core/ops/chunk_order_kernels.h"
#include "core/ops/cross_entropy_kernels.h"
#include "core/ops/elementwise_kernels.h"
#include "core/ops/embedding_kernels.h"
#include "core/ops/matmul/matmul_kernels.h"
#include "core/ops/norm/qk_norm_kernels.h"
#include "core/ops/norm/rms_norm_kernels.h"
#include "core/ops/rope_kernels.h"
#include "core/ops/swiglu_kernels.h"

namespace ottava::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("cuda", "{}", unavailable_reason()); }
}  // namespace

void add(Stream&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void add_in_order(Stream&, const AddInOrder&) { absent(); }
void add_bias(Stream&, const Tensor&, const Tensor&) { absent(); }
void attention_backward(Stream&, const AttentionBackward&) { absent(); }
void attention_decode(Stream&, const AttentionDecode&) { absent(); }
void attention_forward(Stream&, const AttentionForward&) { absent(); }
void bias_gradient(Stream&, const Tensor&, const Tensor&) { absent(); }
void cast(Stream&, const Tensor&, const Tensor&) { absent(); }
void copy_chunks(Stream&, const ChunkCopy&) { absent(); }
void copy_columns(Stream&, const MatrixRows&, const MatrixRows&) { absent(); }
void cross_entropy(Stream&, const CrossEntropyBackward&) { absent(); }
void cross_entropy_backward(Stream&, const CrossEntropyBackward&) { absent(); }
void cross_entropy_max(Stream&, const CrossEntropy&) { absent(); }
void cross_entropy_sum(Stream&, const CrossEntropy&) { absent(); }
void embedding_backward(Stream&, const EmbeddingBackward&) { absent(); }
void embedding_forward(Stream&, const EmbeddingForward&) { absent(); }
void fill_zero(Stream&, const Tensor&) { absent(); }
void matmul(Stream&, const Matmul&) { absent(); }
void qk_norm_backward(Stream&, const QkNormBackward&) { absent(); }
void qk_norm_forward(Stream&, const QkNormForward&) { absent(); }
void rms_norm_backward(Stream&, const RmsNormBackward&) { absent(); }
void rms_norm_forward(Stream&, const RmsNormForward&) { absent(); }
void rope(Stream&, const Rope&) { absent(); }
void set_matmul_workspace(Stream&, Tensor) { absent(); }
void sum_into(Stream&, const Tensor&, const Tensor&) { absent(); }
void swiglu_backward(Stream&, const SwigluBackward&) { absent(); }
void swiglu_forward(Stream&, const SwigluForward&) { absent(); }

}  // namespace ottava::cuda
