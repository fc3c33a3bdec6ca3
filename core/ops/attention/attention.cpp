#include "core/ops/attention/attention.h"

#include "core/check.h"
#include "core/cpu/matmul_cache.h"
#include "core/cuda/fused_attention.h"
#include "core/ops/attention/attention_kernels.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

constexpr std::string_view kForward = "attention_forward", kBackward = "attention_backward",
                           kDecode = "attention_decode", kWorkspace = "attention_workspace_bytes";

void check_heads(std::string_view op, DeviceType target, AttentionHeads h) {
  if (h.heads < 1 || h.kv_heads < 1 || h.heads % h.kv_heads != 0) {
    fail<ShapeError>(op, "{} heads cannot share {} key heads: the first must be a multiple of the second",
                     h.heads, h.kv_heads);
  }
  const int64_t d = h.head_dim;
  if (takes_head_dim(target, d)) return;
  if (target == DeviceType::cuda)
    fail<ShapeError>(op, "head dimension is {}, expected 16, 32, 64 or 128 on cuda", d);
  fail<ShapeError>(op, "head dimension is {}, expected a multiple of 8 up to {}", d, kMaxHeadDim);
}

void check_size(std::string_view op, int64_t batch, int64_t sequence) {
  if (batch < 1 || sequence < 1) {
    fail<ShapeError>(op, "batch {} and sequence {}: both must be at least 1", batch, sequence);
  }
}

/// Keys and values apart from the queries.
void check_keys(std::string_view op, DType dtype, AttentionHeads h, int64_t batch, int64_t sequence,
                const SeparateKeys& k) {
  const int64_t end = k.first_query + sequence, of_head = 2 * h.head_dim;
  if (k.values.shape.rank() != 2 || k.values.dtype != dtype || k.values.rows() % batch != 0 ||
      k.values.cols() % of_head != 0) {
    fail<ShapeError>(op, "keys.values is {}, expected {} [{} * S, {} * G]", describe(k.values),
                     name_of(dtype), batch, of_head);
  }
  const int64_t positions = k.values.rows() / batch, count = k.values.cols() / of_head;
  if (k.first_query < 0 || end > positions) {
    fail<ShapeError>(op, "queries are positions [{}, {}) of sequences that have keys for {}", k.first_query,
                     end, positions);
  }
  if (k.first_head < 0 || count < 1 || k.first_head + count > h.kv_heads) {
    fail<ShapeError>(op, "keys are of heads [{}, {}) of {}", k.first_head, k.first_head + count, h.kv_heads);
  }
}

/// What forward and backward share.
template <class Args>
void check(std::string_view op, DeviceType target, const Args& a) {
  check_heads(op, target, a.heads);
  check_size(op, a.batch, a.sequence);
  check_float(op, "qkv", a.qkv);
  const int64_t tokens = a.batch * a.sequence, width = a.heads.heads * a.heads.head_dim;
  check_tensor(op, "qkv", a.qkv, a.qkv.dtype, {tokens, a.heads.row()});
  check_tensor(op, "out", a.out, a.qkv.dtype, {tokens, width});
  check_tensor(op, "lse", a.lse, DType::f32, {a.batch, a.heads.heads, a.sequence});
  check_optional(op, "document_start", a.document_start, DType::i32, {tokens});
  if (!a.keys.empty()) check_keys(op, a.qkv.dtype, a.heads, a.batch, a.sequence, a.keys);
}

void check_backward(DeviceType target, const AttentionBackward& a) {
  check(kBackward, target, a);
  check_like(kBackward, "dout", a.dout, "out", a.out);
  check_like(kBackward, "dqkv", a.dqkv, "qkv", a.qkv);
  if (!a.keys.empty())
    check_tensor(kBackward, "keys.gradients", a.keys.gradients, DType::f32, a.keys.values.shape);
}

void check_decode(DeviceType target, const AttentionDecode& a) {
  check_heads(kDecode, target, a.heads);
  check_float(kDecode, "q", a.q);
  if (a.keys.shape.rank() != 3) {
    fail<ShapeError>(kDecode, "keys is {}, expected [B, capacity, {}]", describe(a.keys),
                     a.heads.kv_heads * a.heads.head_dim);
  }
  const int64_t batch = a.keys.shape[0], capacity = a.keys.shape[1];
  check_tensor(kDecode, "q", a.q, a.q.dtype, {batch, a.heads.heads * a.heads.head_dim});
  check_tensor(kDecode, "keys", a.keys, a.q.dtype, {batch, capacity, a.heads.kv_heads * a.heads.head_dim});
  check_like(kDecode, "values", a.values, "keys", a.keys);
  check_like(kDecode, "out", a.out, "q", a.q);
  if (a.length < 1 || a.length > capacity) {
    fail<ShapeError>(kDecode, "length is {}, expected 1 to the cache's capacity {}", a.length, capacity);
  }
}

Precision precision_of(DType dtype) { return dtype == DType::f32 ? Precision::fp32 : Precision::bf16; }

template <class Args>
double query_heads(const Args& a) {
  const int64_t kv = a.keys.empty() ? a.heads.kv_heads : a.keys.values.cols() / (2 * a.heads.head_dim);
  return a.heads.heads / a.heads.kv_heads * kv;
}
/// Number of pairs of a query and a key that it sees, without documents.
template <class Args>
double causal_pairs(const Args& a) {
  const double t = a.sequence, before = a.keys.first_query;
  return a.batch * query_heads(a) * (t * before + t * (t + 1) / 2);
}

template <class Args>
double lse_bytes(const Args& a) {
  return query_heads(a) / a.heads.heads * a.lse.bytes();
}
/// Bytes that a call reads of queries, or of anything else with a column for every head, and of keys with
/// values.
template <class Args>
double query_bytes(const Args& a) {
  return query_heads(a) / a.heads.heads * a.out.bytes();
}
template <class Args>
double key_bytes(const Args& a) {
  if (a.keys.empty()) return a.qkv.bytes() - a.out.bytes();
  return static_cast<double>(a.batch * (a.keys.first_query + a.sequence) * a.keys.values.cols()) *
         size_of(a.qkv.dtype);
}

void decode_on_cpu(const AttentionDecode& a) {
  auto kernel = cpu::attention_kernels().decode[a.q.dtype];
  const int64_t heads = a.heads.heads;
  parallel_for_index(a.q.rows() * heads, 1, [&](int64_t i) { kernel(a, i / heads, i % heads); });
}

}  // namespace

bool takes_head_dim(DeviceType target, int64_t d) {
  if (target == DeviceType::cuda) return d == 16 || d == 32 || d == 64 || d == 128;
  return d >= 8 && d % 8 == 0 && d <= kMaxHeadDim;
}

void attention_forward(Stream& stream, const AttentionForward& args) {
  check(kForward, stream.target().type, args);
  const auto on_cuda = [&] {
    args.fused ? args.fused->forward(stream, args) : cuda::attention_forward(stream, args);
  };
  run_op(stream,
         {.op = kForward,
          .precision = precision_of(args.qkv.dtype),
          .flops = 4.0 * args.heads.head_dim * causal_pairs(args),
          .bytes = 2 * query_bytes(args) + key_bytes(args) + lse_bytes(args)},
         attention_forward, cpu::attention_forward, on_cuda, args);
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  check_backward(stream.target().type, args);
  const auto on_cuda = [&] {
    args.fused ? args.fused->backward(stream, args) : cuda::attention_backward(stream, args);
  };
  // Separate dK and dV are f32, and are read before they are added to.
  const double gradients =
      key_bytes(args) *
      (args.keys.empty() ? 1 : 2 * sizeof(float) / static_cast<double>(size_of(args.qkv.dtype)));
  run_op(stream,
         {.op = kBackward,
          .precision = precision_of(args.qkv.dtype),
          .flops = 10.0 * args.heads.head_dim * causal_pairs(args),
          .bytes = 4 * query_bytes(args) + key_bytes(args) + gradients + lse_bytes(args)},
         attention_backward, cpu::attention_backward, on_cuda, args);
}

int64_t attention_workspace_bytes(const Stream& stream, Pass pass, DType dtype, AttentionHeads heads,
                                  int64_t batch, int64_t sequence, cuda::FusedAttention* fused,
                                  const SeparateKeys& keys) {
  check_heads(kWorkspace, stream.target().type, heads);
  check_size(kWorkspace, batch, sequence);
  check_float(kWorkspace, "qkv", {nullptr, dtype, {batch * sequence, heads.row()}});
  if (!keys.empty()) check_keys(kWorkspace, dtype, heads, batch, sequence, keys);
  if (fused) return fused->workspace_bytes(cuda::problem_of(pass, heads, batch, sequence, keys));
  return stream.target().type == DeviceType::cuda
             ? cuda::attention_workspace_bytes(pass, heads, batch, sequence)
             : cpu::attention_workspace_bytes(stream.matmul_cache().products().attention, pass, dtype, heads,
                                              batch, sequence, keys);
}

void attention_decode(Stream& stream, const AttentionDecode& args) {
  check_decode(stream.target().type, args);
  const auto on_meta = [&] {
    const double rows = args.q.rows(), seen = args.length;
    const double width = args.heads.head_dim;
    stream.recorder().record(
        {.op = kDecode,
         .precision = precision_of(args.q.dtype),
         .flops = 4 * rows * args.heads.heads * width * seen,
         .bytes = 2 * rows * args.heads.kv_heads * width * seen * size_of(args.q.dtype)});
  };
  run_where(stream, decode_on_cpu, cuda::attention_decode, on_meta, args);
}

}  // namespace ottava
