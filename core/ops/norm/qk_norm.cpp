#include "core/ops/norm/qk_norm.h"

#include "core/check.h"
#include "core/cuda/row_groups.h"
#include "core/ops/norm/qk_norm_kernels.h"
#include "core/ops/row_groups.h"
#include "core/raise_amax.h"
#include "core/run_op.h"

namespace ottava {
namespace {

constexpr std::string_view kForward = "qk_norm_forward", kBackward = "qk_norm_backward";

template <class Args>
void check_shared(std::string_view op, const Args& a) {
  check_float(op, "qkv", a.qkv);
  const AttentionHeads& heads = a.heads;
  if (heads.heads < 1 || heads.kv_heads < 1 || heads.head_dim < 1) {
    fail<ShapeError>(op, "{} heads, {} key-value heads of dimension {}: expected at least 1 of each",
                     heads.heads, heads.kv_heads, heads.head_dim);
  }
  const int64_t rows = a.qkv.rows();
  check_tensor(op, "qkv", a.qkv, a.qkv.dtype, {rows, heads.row()});
  check_tensor(op, "weight_q", a.weight_q, a.qkv.dtype, {heads.head_dim});
  check_tensor(op, "weight_k", a.weight_k, a.qkv.dtype, {heads.head_dim});
  check_tensor(op, "rstd", a.rstd, DType::f32, {rows, heads.heads + heads.kv_heads});
}

void check(const QkNormForward& a) {
  check_shared(kForward, a);
  check_like(kForward, "out", a.out, "qkv", a.qkv);
}

void check(const QkNormBackward& a, Shape workspace) {
  check_shared(kBackward, a);
  check_like(kBackward, "dqkv", a.dqkv, "qkv", a.qkv);
  check_tensor(kBackward, "dweight_q", a.dweight_q, DType::f32, {a.heads.head_dim});
  check_tensor(kBackward, "dweight_k", a.dweight_k, DType::f32, {a.heads.head_dim});
  check_tensor(kBackward, "workspace", a.workspace, DType::f32, workspace);
  check_optional(kBackward, "amax", a.amax, DType::u32, {1});
}

void qk_norm_forward_on_cpu(const QkNormForward& a) {
  auto kernel = cpu::qk_norm_kernels().forward[a.qkv.dtype];
  parallel_for(a.qkv.rows(), 16, [&](int64_t begin, int64_t end) { kernel(a, {begin, end, a.qkv.cols()}); });
}

void qk_norm_backward_on_cpu(const QkNormBackward& a) {
  auto kernel = cpu::qk_norm_kernels().backward[a.qkv.dtype];
  const int64_t dim = a.heads.head_dim;
  float* partials = a.workspace.as<float>();
  for_each_row_group(a.qkv.rows(), 2 * dim, partials, [&](float* partial, int64_t begin, int64_t end) {
    raise_amax(a.amax, kernel(a, {begin, end, a.qkv.cols()}, partial));
  });
  add_row_groups(partials, 2 * dim, a.dweight_q.as<float>(), dim);
  add_row_groups(partials + dim, 2 * dim, a.dweight_k.as<float>(), dim);
}

/// Bytes of so many heads of all rows.
double head_bytes(const Tensor& qkv, int64_t heads, AttentionHeads of) {
  return static_cast<double>(qkv.rows() * heads * of.head_dim) * size_of(qkv.dtype);
}

}  // namespace

Shape qk_norm_workspace(const Stream& stream, AttentionHeads heads) {
  bool on_gpu = stream.target().type == DeviceType::cuda;
  return {on_gpu ? cuda::kRowGroups : kRowGroups, 2 * heads.head_dim};
}

void qk_norm_forward(Stream& stream, const QkNormForward& args) {
  check(args);
  run_op(stream, moving(kForward, 2 * args.qkv.bytes()), qk_norm_forward, qk_norm_forward_on_cpu,
         cuda::qk_norm_forward, args);
}

void qk_norm_backward(Stream& stream, const QkNormBackward& args) {
  check(args, qk_norm_workspace(stream, args.heads));
  const AttentionHeads& heads = args.heads;
  run_op(stream,
         {.op = kBackward,
          .bytes = 3 * head_bytes(args.qkv, heads.heads + heads.kv_heads, heads) +
                   (args.amax.empty() ? 0 : head_bytes(args.qkv, heads.kv_heads, heads))},
         qk_norm_backward, qk_norm_backward_on_cpu, cuda::qk_norm_backward, args);
}

}  // namespace ottava
