#include "apps/kernel_cases.h"

#include <algorithm>

#include "core/cuda/fused_attention.h"
#include "core/ops/attention.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/matmul.h"
#include "core/ops/rms_norm.h"
#include "core/ops/rope.h"
#include "core/ops/swiglu.h"
#include "core/optim/adamw.h"
#include "core/optim/grad_norm.h"
#include "core/philox.h"
#include "fp8/quantize.h"

namespace ottava {
namespace {

using Run = std::function<void(Stream&)>;
constexpr int64_t kPattern = 1 << 16;  ///< elements, repeated

float pattern_value(int64_t i) { return static_cast<float>((i * 2654435761u >> 7) % 4001) / 1000.0f - 2.0f; }

Run copy(Workbench& b, int64_t elements) {
  Tensor from = b.tensor(DType::bf16, {elements}), to = b.tensor(DType::bf16, {elements});
  return [=](Stream& s) { cast(s, from, to); };
}

Run product(Workbench& b, Stream& target, const KernelShapes& k) {
  Matmul args{.a = b.tensor(DType::bf16, {k.rows(), k.dim}),
              .b = b.tensor(DType::bf16, {k.ffn, k.dim}),
              .out = b.tensor(DType::bf16, {k.rows(), k.ffn})};
  Tensor workspace = b.tensor(DType::u8, {std::max<int64_t>(matmul_workspace_bytes(target, args), 1)});
  return [=](Stream& s) {
    if (s.type() != DeviceType::meta) set_matmul_workspace(s, workspace);
    matmul(s, args);
  };
}

Run norm_forward(Workbench& b, const KernelShapes& k) {
  RmsNormForward args{.x = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .weight = b.tensor(DType::bf16, {k.dim}),
                      .residual = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .sum = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .y = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .rstd = b.tensor(DType::f32, {k.rows()}),
                      .amax = {}};
  return [=](Stream& s) { rms_norm_forward(s, args); };
}

Run norm_backward(Workbench& b, Stream& target, const KernelShapes& k) {
  RmsNormBackward args{.dy = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .x = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .weight = b.tensor(DType::bf16, {k.dim}),
                       .rstd = b.tensor(DType::f32, {k.rows()}),
                       .dresidual = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .dx = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .dweight = b.zeros(DType::f32, {k.dim}),
                       .workspace = b.tensor(DType::f32, rms_norm_workspace(target, k.dim)),
                       .amax = {}};
  return [=](Stream& s) { rms_norm_backward(s, args); };
}

Run swiglu_both(Workbench& b, const KernelShapes& k, bool backward) {
  Tensor gate_up = b.tensor(DType::bf16, {k.rows(), 2 * k.ffn}),
         out = b.tensor(DType::bf16, {k.rows(), k.ffn});
  if (!backward) return [=](Stream& s) { swiglu_forward(s, {.gate_up = gate_up, .out = out, .amax = {}}); };
  Tensor d = b.tensor(DType::bf16, {k.rows(), 2 * k.ffn});
  return [=](Stream& s) {
    swiglu_backward(s, {.dout = out, .gate_up = gate_up, .dgate_up = d, .out = {}, .amax = {}});
  };
}

Run rotary(Workbench& b, const KernelShapes& k) {
  AttentionHeads heads{k.heads, k.kv_heads, k.head_dim};
  Rope args{.qkv = b.tensor(DType::bf16, {k.rows(), heads.row()}),
            .table = b.tensor(DType::f32, {k.sequence, k.head_dim}),
            .positions = {},
            .heads = heads,
            .sequence = k.sequence};
  return [=](Stream& s) { rope(s, args); };
}

Run embedding(Workbench& b, const KernelShapes& k, bool backward) {
  Tensor tokens = b.indices(k.rows(), k.vocabulary), out = b.tensor(DType::bf16, {k.rows(), k.dim});
  if (!backward) {
    Tensor table = b.tensor(DType::bf16, {k.vocabulary, k.dim});
    return [=](Stream& s) { embedding_forward(s, {.tokens = tokens, .table = table, .out = out}); };
  }
  EmbeddingBackward args{
      .tokens = tokens,
      .dout = out,
      .dtable = b.zeros(DType::f32, {k.vocabulary, k.dim}),
      .workspace = b.tensor(DType::i32, embedding_backward_workspace(k.rows(), k.vocabulary))};
  return [=](Stream& s) { embedding_backward(s, args); };
}

Run loss(Workbench& b, const KernelShapes& k) {
  auto row = [&] { return b.tensor(DType::f32, {k.loss_rows}); };
  CrossEntropyBackward args{.forward = {.logits = b.tensor(DType::f32, {k.loss_rows, k.vocabulary}),
                                        .targets = b.indices(k.loss_rows, k.vocabulary),
                                        .row_max = row(),
                                        .row_sum = row(),
                                        .row_target = row(),
                                        .vocab_begin = 0,
                                        .valid_columns = k.vocabulary},
                            .losses = row(),
                            .dlogits = b.tensor(DType::bf16, {k.loss_rows, k.vocabulary}),
                            .grad_scale = b.tensor(DType::f32, {1})};
  return [=](Stream& s) { cross_entropy(s, args); };
}

using Fused = std::shared_ptr<cuda::FusedAttention>;

Run attention(Workbench& b, Stream& target, const KernelShapes& k, Pass pass, const Fused& fused = {}) {
  AttentionHeads heads{k.heads, k.kv_heads, k.head_dim};
  auto wide = [&] { return b.tensor(DType::bf16, {k.rows(), k.heads * k.head_dim}); };
  Tensor qkv = b.tensor(DType::bf16, {k.rows(), heads.row()}), out = wide();
  Tensor lse = b.tensor(DType::f32, {k.batch, k.heads, k.sequence});
  int64_t bytes =
      attention_workspace_bytes(target, pass, DType::bf16, heads, k.batch, k.sequence, fused.get());
  Tensor workspace = b.tensor(DType::u8, {std::max<int64_t>(bytes, 256)});
  AttentionForward forward{.qkv = qkv,
                           .out = out,
                           .lse = lse,
                           .document_start = {},
                           .workspace = workspace,
                           .heads = heads,
                           .batch = k.batch,
                           .sequence = k.sequence,
                           .fused = fused.get()};
  if (pass == Pass::forward) return [forward, fused](Stream& s) { attention_forward(s, forward); };
  AttentionBackward backward{.qkv = qkv,
                             .out = out,
                             .lse = lse,
                             .dout = wide(),
                             .dqkv = b.tensor(DType::bf16, {k.rows(), heads.row()}),
                             .document_start = {},
                             .workspace = workspace,
                             .heads = heads,
                             .batch = k.batch,
                             .sequence = k.sequence,
                             .fused = fused.get()};
  return [backward, fused](Stream& s) { attention_backward(s, backward); };
}

Run optimizer(Workbench& b, const KernelShapes& k) {
  auto f32 = [&] { return b.tensor(DType::f32, {k.parameters}); };
  std::vector<AdamwTensor> tensors(1);
  tensors[0] = {.master = f32(),
                .gradient = f32(),
                .exp_avg = f32(),
                .exp_avg_sq = b.zeros(DType::f32, {k.parameters}),
                .compute = b.tensor(DType::bf16, {k.parameters}),
                .amax = {}};
  Tensor scalars = b.tensor(DType::f32, {kStepScalars}), step = b.zeros(DType::i64, {1});
  return [=](Stream& s) { adamw(s, tensors, {}, scalars, step); };
}

Run norm_of_gradients(Workbench& b, const KernelShapes& k) {
  Tensor x = b.tensor(DType::f32, {k.parameters}), out = b.zeros(DType::f64, {1});
  Tensor workspace = b.zeros(DType::f64, grad_norm_workspace({x.shape}));
  return [=](Stream& s) { grad_norm_squared(s, {x}, out, workspace); };
}

Run quantized(Workbench& b, const KernelShapes& k, fp8::Granularity granularity, bool with_transpose) {
  int64_t rows = k.rows(), columns = k.dim;
  auto output = [&](int64_t r, int64_t c) {
    return fp8::Quantized{b.tensor(DType::e4m3, {r, c}),
                          b.tensor(fp8::scale_dtype(granularity), fp8::scale_shape(granularity, r, c))};
  };
  fp8::Quantize args{.x = b.tensor(DType::bf16, {rows, columns}),
                     .granularity = granularity,
                     .amax = {},
                     .column_amax = {},
                     .out = output(rows, columns),
                     .transposed = {},
                     .counters = {},
                     .non_finite = {}};
  if (with_transpose) args.transposed = output(columns, rows);
  if (granularity == fp8::Granularity::tensor) args.amax = b.zeros(DType::u32, {1});
  if (granularity == fp8::Granularity::row && with_transpose)
    args.column_amax = b.zeros(DType::u32, {columns});
  return [=](Stream& s) { fp8::quantize(s, args); };
}

Run largest(Workbench& b, const KernelShapes& k) {
  Tensor x = b.tensor(DType::bf16, {k.rows(), k.dim}), out = b.zeros(DType::u32, {1});
  return [=](Stream& s) { fp8::amax(s, x, out); };
}

}  // namespace

Workbench::Workbench(Device device) : device_(device) {}

Tensor Workbench::allocate(DType dtype, Shape shape) {
  Tensor tensor{nullptr, dtype, shape};
  if (device_.type == DeviceType::meta) return tensor;
  buffers_.emplace_back(device_, static_cast<size_t>(std::max<int64_t>(tensor.bytes(), 1)));
  tensor.data = buffers_.back().data();
  return tensor;
}

void Workbench::fill(const Tensor& tensor, const void* pattern, int64_t pattern_bytes) {
  Stream stream = device_.type == DeviceType::cuda ? Stream::cuda(device_.index) : Stream::cpu();
  for (int64_t at = 0; at < tensor.bytes(); at += pattern_bytes) {
    int64_t bytes = std::min(pattern_bytes, tensor.bytes() - at);
    cast(stream, Tensor{const_cast<void*>(pattern), DType::u8, {bytes}},
         Tensor{static_cast<char*>(tensor.data) + at, DType::u8, {bytes}});
  }
  stream.synchronize();
}

Tensor Workbench::tensor(DType dtype, Shape shape) {
  Tensor tensor = allocate(dtype, shape);
  if (!tensor.data) return tensor;
  if (dtype == DType::f32) {
    std::vector<float> pattern;
    for (int64_t i = 0; i < kPattern; ++i) pattern.push_back(pattern_value(i));
    fill(tensor, pattern.data(), kPattern * 4);
  } else {
    std::vector<bf16> pattern;
    for (int64_t i = 0; i < kPattern; ++i) pattern.emplace_back(pattern_value(i));
    fill(tensor, pattern.data(), kPattern * 2);
  }
  return tensor;
}

Tensor Workbench::zeros(DType dtype, Shape shape) {
  Tensor tensor = allocate(dtype, shape);
  std::vector<char> pattern(kPattern);
  if (tensor.data) fill(tensor, pattern.data(), kPattern);
  return tensor;
}

Tensor Workbench::indices(int64_t count, int64_t limit) {
  Tensor tensor = allocate(DType::i32, {count});
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<int32_t>(i * 2654435761 % 4294967291 % limit));
  if (tensor.data) fill(tensor, values.data(), count * 4);
  return tensor;
}

KernelShapes small_kernel_shapes() {
  return {.batch = 1,
          .sequence = 256,
          .dim = 256,
          .ffn = 768,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 64,
          .vocabulary = 2048,
          .loss_rows = 128,
          .parameters = 1 << 20};
}

std::vector<KernelCase> kernel_cases(const KernelShapes& k) {
  using B = Workbench;
  using S = Stream;
  using fp8::Granularity;
  return {
      {"copy", Bound::copy, [=](B& b, S&) { return copy(b, 2 * k.parameters); }},
      {"matmul bf16", Bound::gemm, [=](B& b, S& s) { return product(b, s, k); }},
      {"rms_norm forward + residual", Bound::copy, [=](B& b, S&) { return norm_forward(b, k); }},
      {"rms_norm backward + residual", Bound::copy, [=](B& b, S& s) { return norm_backward(b, s, k); }},
      {"swiglu forward", Bound::copy, [=](B& b, S&) { return swiglu_both(b, k, false); }},
      {"swiglu backward", Bound::copy, [=](B& b, S&) { return swiglu_both(b, k, true); }},
      {"rope", Bound::copy, [=](B& b, S&) { return rotary(b, k); }},
      {"embedding forward", Bound::copy, [=](B& b, S&) { return embedding(b, k, false); }},
      {"embedding backward", Bound::copy, [=](B& b, S&) { return embedding(b, k, true); }},
      {"cross_entropy", Bound::copy, [=](B& b, S&) { return loss(b, k); }},
      {"adamw", Bound::copy, [=](B& b, S&) { return optimizer(b, k); }},
      {"grad_norm", Bound::copy, [=](B& b, S&) { return norm_of_gradients(b, k); }},
      {"amax", Bound::copy, [=](B& b, S&) { return largest(b, k); }},
      {"quantize tensorwise", Bound::copy,
       [=](B& b, S&) { return quantized(b, k, Granularity::tensor, false); }},
      {"quantize tensorwise + transpose", Bound::copy,
       [=](B& b, S&) { return quantized(b, k, Granularity::tensor, true); }},
      {"quantize rowwise", Bound::copy, [=](B& b, S&) { return quantized(b, k, Granularity::row, false); }},
      {"quantize 1x128 + transpose", Bound::copy,
       [=](B& b, S&) { return quantized(b, k, Granularity::block_1x128, true); }},
      {"attention forward", Bound::gemm, [=](B& b, S& s) { return attention(b, s, k, Pass::forward); }},
      {"attention backward", Bound::gemm, [=](B& b, S& s) { return attention(b, s, k, Pass::backward); }},
  };
}

std::vector<KernelCase> cudnn_kernel_cases(const KernelShapes& k) {
  if (!cuda::cudnn_is_built()) return {};
  auto of = [k](Pass pass) {
    return [=](Workbench& b, Stream& s) {
      const bool runs = s.type() == DeviceType::cuda;  // on meta nothing does
      return attention(b, s, k, pass,
                       runs ? std::make_shared<cuda::FusedAttention>(s.device().index) : nullptr);
    };
  };
  return {{"attention forward, cuDNN", Bound::gemm, of(Pass::forward)},
          {"attention backward, cuDNN", Bound::gemm, of(Pass::backward)}};
}

}  // namespace ottava
