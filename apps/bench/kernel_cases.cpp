#include "apps/bench/kernel_cases.h"

#include <algorithm>
#include <memory>

#include "core/cuda/fused_attention.h"
#include "core/ops/attention/attention.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/matmul/matmul.h"
#include "core/ops/norm/qk_norm.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "core/optim/adamw.h"
#include "core/optim/grad_norm.h"

namespace ottava {
namespace {

using Run = std::function<void(Stream&)>;
enum class Measure { nothing, amax };  ///< of what the operation writes, for FP8

Tensor amax_of(Workbench& b, Measure measure) {
  return measure == Measure::amax ? b.zeros(DType::u32, {1}) : Tensor{};
}

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

Run norm_forward(Workbench& b, const KernelShapes& k, Measure measure) {
  RmsNormForward args{.x = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .weight = b.tensor(DType::bf16, {k.dim}),
                      .residual = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .sum = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .y = b.tensor(DType::bf16, {k.rows(), k.dim}),
                      .rstd = b.tensor(DType::f32, {k.rows()}),
                      .amax = amax_of(b, measure)};
  return [=](Stream& s) { rms_norm_forward(s, args); };
}

Run norm_backward(Workbench& b, Stream& target, const KernelShapes& k, Measure measure) {
  RmsNormBackward args{.dy = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .x = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .weight = b.tensor(DType::bf16, {k.dim}),
                       .rstd = b.tensor(DType::f32, {k.rows()}),
                       .dresidual = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .dx = b.tensor(DType::bf16, {k.rows(), k.dim}),
                       .dweight = b.zeros(DType::f32, {k.dim}),
                       .workspace = b.tensor(DType::f32, rms_norm_workspace(target, k.dim)),
                       .amax = amax_of(b, measure)};
  return [=](Stream& s) { rms_norm_backward(s, args); };
}

Run swiglu(Workbench& b, const KernelShapes& k, Pass pass, Measure measure) {
  Tensor gate_up = b.tensor(DType::bf16, {k.rows(), 2 * k.ffn}),
         out = b.tensor(DType::bf16, {k.rows(), k.ffn}), amax = amax_of(b, measure);
  if (pass == Pass::forward)
    return [=](Stream& s) { swiglu_forward(s, {.gate_up = gate_up, .out = out, .amax = amax}); };
  Tensor d = b.tensor(DType::bf16, {k.rows(), 2 * k.ffn});
  return [=](Stream& s) {
    swiglu_backward(s, {.dout = out, .gate_up = gate_up, .dgate_up = d, .out = {}, .amax = amax});
  };
}

Run qk_norm(Workbench& b, Stream& target, const KernelShapes& k, Pass pass) {
  const AttentionHeads heads = k.attention_heads();
  auto matrix = [&] { return b.tensor(DType::bf16, {k.rows(), heads.row()}); };
  auto vector = [&] { return b.tensor(DType::bf16, {k.head_dim}); };
  Tensor qkv = matrix(), rstd = b.tensor(DType::f32, {k.rows(), k.heads + k.kv_heads});
  if (pass == Pass::forward) {
    QkNormForward args{.qkv = qkv,
                       .weight_q = vector(),
                       .weight_k = vector(),
                       .out = matrix(),
                       .rstd = rstd,
                       .heads = heads};
    return [=](Stream& s) { qk_norm_forward(s, args); };
  }
  QkNormBackward args{.dqkv = matrix(),
                      .qkv = qkv,
                      .weight_q = vector(),
                      .weight_k = vector(),
                      .rstd = rstd,
                      .dweight_q = b.zeros(DType::f32, {k.head_dim}),
                      .dweight_k = b.zeros(DType::f32, {k.head_dim}),
                      .workspace = b.tensor(DType::f32, qk_norm_workspace(target, heads)),
                      .heads = heads,
                      .amax = {}};
  return [=](Stream& s) { qk_norm_backward(s, args); };
}

Run bias(Workbench& b, const KernelShapes& k, Pass pass) {
  Tensor y = b.tensor(DType::bf16, {k.rows(), k.dim});
  if (pass == Pass::forward) {
    Tensor values = b.tensor(DType::bf16, {k.dim});
    return [=](Stream& s) { add_bias(s, y, values); };
  }
  Tensor gradient = b.zeros(DType::f32, {k.dim});
  return [=](Stream& s) { bias_gradient(s, y, gradient); };
}

Run sum(Workbench& b, const KernelShapes& k) {
  auto matrix = [&] { return b.tensor(DType::bf16, {k.rows(), k.dim}); };
  Tensor x = matrix(), y = matrix(), out = matrix();
  return [=](Stream& s) { add(s, x, y, out); };
}

Run narrowed(Workbench& b, const KernelShapes& k) {
  Tensor from = b.tensor(DType::f32, {k.parameters}), to = b.tensor(DType::bf16, {k.parameters});
  return [=](Stream& s) { cast(s, from, to); };
}

Run rotary(Workbench& b, const KernelShapes& k) {
  const AttentionHeads heads = k.attention_heads();
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
  const AttentionHeads heads = k.attention_heads();
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

// bf16 states are rounded stochastically.
Run optimizer(Workbench& b, const KernelShapes& k, DType state, Measure measure) {
  auto f32 = [&] { return b.tensor(DType::f32, {k.parameters}); };
  std::vector<AdamwTensor> tensors(1);
  tensors[0] = {.master = f32(),
                .gradient = f32(),
                .exp_avg = b.tensor(state, {k.parameters}),
                .exp_avg_sq = b.zeros(state, {k.parameters}),
                .compute = b.tensor(DType::bf16, {k.parameters}),
                .amax = amax_of(b, measure)};
  Tensor scalars = b.tensor(DType::f32, {kStepScalars}), step = b.zeros(DType::i64, {1});
  return [=](Stream& s) { adamw(s, tensors, {}, scalars, step); };
}

Run norm_of_gradients(Workbench& b, const KernelShapes& k) {
  Tensor x = b.tensor(DType::f32, {k.parameters}), out = b.zeros(DType::f64, {1});
  Tensor workspace = b.zeros(DType::f64, grad_norm_workspace({x.shape}));
  return [=](Stream& s) { grad_norm_squared(s, {x}, out, workspace); };
}

}  // namespace

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
  constexpr auto kNothing = Measure::nothing, kAmax = Measure::amax;
  constexpr auto kForward = Pass::forward, kBackward = Pass::backward;
  return {
      {"copy", Bound::copy, [=](B& b, S&) { return copy(b, 2 * k.parameters); }},
      {"matmul bf16", Bound::gemm, [=](B& b, S& s) { return product(b, s, k); }},
      {"rms_norm forward + residual", Bound::copy, [=](B& b, S&) { return norm_forward(b, k, kNothing); }},
      {"rms_norm forward + residual + amax", Bound::copy,
       [=](B& b, S&) { return norm_forward(b, k, kAmax); }},
      {"rms_norm backward + residual", Bound::copy,
       [=](B& b, S& s) { return norm_backward(b, s, k, kNothing); }},
      {"rms_norm backward + residual + amax", Bound::copy,
       [=](B& b, S& s) { return norm_backward(b, s, k, kAmax); }},
      {"swiglu forward", Bound::copy, [=](B& b, S&) { return swiglu(b, k, kForward, kNothing); }},
      {"swiglu forward + amax", Bound::copy, [=](B& b, S&) { return swiglu(b, k, kForward, kAmax); }},
      {"swiglu backward", Bound::copy, [=](B& b, S&) { return swiglu(b, k, kBackward, kNothing); }},
      {"swiglu backward + amax", Bound::copy, [=](B& b, S&) { return swiglu(b, k, kBackward, kAmax); }},
      {"rope", Bound::copy, [=](B& b, S&) { return rotary(b, k); }},
      {"qk_norm forward", Bound::copy, [=](B& b, S& s) { return qk_norm(b, s, k, kForward); }},
      {"qk_norm backward", Bound::copy, [=](B& b, S& s) { return qk_norm(b, s, k, kBackward); }},
      {"bias", Bound::copy, [=](B& b, S&) { return bias(b, k, kForward); }},
      {"bias gradient", Bound::copy, [=](B& b, S&) { return bias(b, k, kBackward); }},
      {"add", Bound::copy, [=](B& b, S&) { return sum(b, k); }},
      {"cast f32 to bf16", Bound::copy, [=](B& b, S&) { return narrowed(b, k); }},
      {"embedding forward", Bound::copy, [=](B& b, S&) { return embedding(b, k, false); }},
      {"embedding backward", Bound::copy, [=](B& b, S&) { return embedding(b, k, true); }},
      {"cross_entropy", Bound::copy, [=](B& b, S&) { return loss(b, k); }},
      {"adamw", Bound::copy, [=](B& b, S&) { return optimizer(b, k, DType::f32, kNothing); }},
      {"adamw + amax", Bound::copy, [=](B& b, S&) { return optimizer(b, k, DType::f32, kAmax); }},
      {"adamw, bf16 states", Bound::copy, [=](B& b, S&) { return optimizer(b, k, DType::bf16, kNothing); }},
      {"grad_norm", Bound::copy, [=](B& b, S&) { return norm_of_gradients(b, k); }},
      {"attention forward", Bound::gemm, [=](B& b, S& s) { return attention(b, s, k, kForward); }},
      {"attention backward", Bound::gemm, [=](B& b, S& s) { return attention(b, s, k, kBackward); }},
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

std::vector<KernelCase> all_kernel_cases(const KernelShapes& k, Device device) {
  std::vector<KernelCase> all = kernel_cases(k);
  auto append = [&](std::vector<KernelCase> more) { std::ranges::move(more, std::back_inserter(all)); };
  append(float8_kernel_cases(k));
  append(float8_product_cases(k, device));
  if (device.type == DeviceType::cuda) append(cudnn_kernel_cases(k));
  return all;
}

}  // namespace ottava
