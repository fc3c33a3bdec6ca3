// Bytes per second of operations that memory should bound, at the shapes of a 60M-parameter model (dim
// 512, ffn 1536, vocabulary 2560, 8 heads of 64, 8 sequences of 1024 tokens), beside plain copies. An
// argument chooses the lines that contain it.
//     ninja -C build core_ops_bandwidth && OMP_NUM_THREADS=2 build/tests/core_ops_bandwidth
#include "tests/support/bandwidth.h"

#include <algorithm>
#include <cstdio>

#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/norm/qk_norm.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/rope.h"
#include "core/ops/swiglu.h"
#include "core/optim/adamw.h"
#include "core/optim/grad_norm.h"

using namespace ottava;

namespace {

constexpr int64_t kTokens = 8192, kDim = 512, kWidth = 1536, kVocab = 2560, kChunk = 512,
                  kParameters = 20'000'000;

}  // namespace

int main(int argc, char** argv) {
  test::BandwidthTable table(argc > 1 ? argv[1] : "");
  Stream s = Stream::cpu();
  auto zeros = [&](DType dtype, Shape shape) { return table.zeros(dtype, shape); };
  auto filled = [&](DType dtype, Shape shape) { return table.filled(dtype, shape); };
  auto measure = [&](const char* name, const std::function<void(Stream&)>& body) {
    table.measure(name, body);
  };
  {
    auto a = filled(DType::f32, {1 << 24});
    measure("fill_zero 64 MiB", [&](Stream& t) { fill_zero(t, a); });
  }
  const DType type = DType::bf16;
  auto x = filled(type, {kTokens, kDim}), r = filled(type, {kTokens, kDim}), h = zeros(type, {kTokens, kDim}),
       y = zeros(type, {kTokens, kDim}), w = filled(type, {kDim});
  auto wide = zeros(DType::f32, {kTokens, kDim}), rstd = filled(DType::f32, {kTokens}),
       dw = zeros(DType::f32, {kDim});
  auto workspace = zeros(DType::f32, rms_norm_workspace(s, kDim));
  auto one = filled(DType::f32, {1});
  measure("copy 8 MiB", [&](Stream& t) { cast(t, x, y); });
  measure("cast bf16 to f32", [&](Stream& t) { cast(t, x, wide); });
  measure("cast f32 to bf16", [&](Stream& t) { cast(t, wide, y); });
  measure("add", [&](Stream& t) { add(t, x, r, y); });
  measure("sum_into", [&](Stream& t) { sum_into(t, wide, one); });
  measure("rms_norm_forward",
          [&](Stream& t) { rms_norm_forward(t, {.x = x, .weight = w, .y = y, .rstd = rstd}); });
  measure("rms_norm_forward + residual", [&](Stream& t) {
    rms_norm_forward(t, {.x = x, .weight = w, .residual = r, .sum = h, .y = y, .rstd = rstd});
  });
  measure("rms_norm_backward + residual", [&](Stream& t) {
    rms_norm_backward(t, {.dy = y,
                          .x = x,
                          .weight = w,
                          .rstd = rstd,
                          .dresidual = r,
                          .dx = h,
                          .dweight = dw,
                          .workspace = workspace});
  });
  {
    auto gate_up = filled(type, {kTokens, 2 * kWidth}), gradient = zeros(type, {kTokens, 2 * kWidth}),
         out = filled(type, {kTokens, kWidth});
    measure("swiglu_forward", [&](Stream& t) { swiglu_forward(t, {.gate_up = gate_up, .out = out}); });
    measure("swiglu_backward",
            [&](Stream& t) { swiglu_backward(t, {.dout = out, .gate_up = gate_up, .dgate_up = gradient}); });
  }
  for (int64_t dim : {64, 16}) {
    const AttentionHeads heads{512 / dim, 512 / dim, dim};
    auto qkv = filled(type, {kTokens, heads.row()}), out = zeros(type, {kTokens, heads.row()});
    auto table = zeros(DType::f32, {1024, dim}), head_rstd = zeros(DType::f32, {kTokens, 2 * heads.heads});
    auto weight = filled(type, {dim}), dq = zeros(DType::f32, {dim}), dk = zeros(DType::f32, {dim}),
         head_workspace = zeros(DType::f32, qk_norm_workspace(s, heads));
    fill_rope_table(table.as<float>(), 1024, dim, 500000, {});
    std::printf("head dim %d\n", static_cast<int>(dim));
    measure("rope",
            [&](Stream& t) { rope(t, {.qkv = qkv, .table = table, .heads = heads, .sequence = 1024}); });
    measure("qk_norm_forward", [&](Stream& t) {
      qk_norm_forward(t, {.qkv = qkv,
                          .weight_q = weight,
                          .weight_k = weight,
                          .out = out,
                          .rstd = head_rstd,
                          .heads = heads});
    });
    measure("qk_norm_backward", [&](Stream& t) {
      qk_norm_backward(t, {.dqkv = out,
                           .qkv = qkv,
                           .weight_q = weight,
                           .weight_k = weight,
                           .rstd = head_rstd,
                           .dweight_q = dq,
                           .dweight_k = dk,
                           .workspace = head_workspace,
                           .heads = heads});
    });
  }
  {
    auto tokens = zeros(DType::i32, {kTokens});
    for (int64_t n = 0; n < kTokens; ++n) tokens.as<int32_t>()[n] = static_cast<int32_t>(n * n % kVocab);
    auto table = filled(type, {kVocab, kDim}), gradient = zeros(DType::f32, {kVocab, kDim}),
         sorted = zeros(DType::i32, embedding_backward_workspace(kTokens, kVocab));
    measure("embedding_forward",
            [&](Stream& t) { embedding_forward(t, {.tokens = tokens, .table = table, .out = y}); });
    measure("embedding_backward", [&](Stream& t) {
      embedding_backward(t, {.tokens = tokens, .dout = x, .dtable = gradient, .workspace = sorted});
    });
  }
  {
    auto logits = filled(DType::f32, {kChunk, kVocab}), gradient = zeros(type, {kChunk, kVocab}),
         row = zeros(DType::f32, {kChunk}), losses = zeros(DType::f32, {kChunk}),
         sums = filled(DType::f32, {kChunk}), targets = zeros(DType::i32, {kChunk});
    const CrossEntropy forward{.logits = logits,
                               .targets = targets,
                               .row_max = row,
                               .row_sum = sums,
                               .row_target = losses,
                               .valid_columns = kVocab};
    const CrossEntropyBackward all{
        .forward = forward, .losses = losses, .dlogits = gradient, .grad_scale = one};
    measure("cross_entropy_max", [&](Stream& t) { cross_entropy_max(t, forward); });
    measure("cross_entropy_sum", [&](Stream& t) { cross_entropy_sum(t, forward); });
    measure("cross_entropy_backward", [&](Stream& t) { cross_entropy_backward(t, all); });
    measure("cross_entropy", [&](Stream& t) { cross_entropy(t, all); });
  }
  {
    auto p = filled(DType::f32, {kParameters}), g = filled(DType::f32, {kParameters}),
         c = zeros(type, {kParameters});
    auto scalars = zeros(DType::f32, {kStepScalars}), corrections = filled(DType::f32, {2}),
         step = zeros(DType::i64, {1}), sum = zeros(DType::f64, {1}),
         sums = zeros(DType::f64, grad_norm_workspace({p.shape}));
    std::fill_n(scalars.as<float>(), static_cast<int>(kStepScalars), 0.1f);
    measure("grad_norm_squared", [&](Stream& t) { grad_norm_squared(t, {g}, sum, sums); });
    for (DType states : {DType::f32, DType::bf16}) {
      auto m = zeros(states, {kParameters}), v = zeros(states, {kParameters});
      measure(states == DType::f32 ? "adamw, f32 states" : "adamw, bf16 states", [&](Stream& t) {
        adamw(t,
              {{.master = p,
                .gradient = g,
                .exp_avg = m,
                .exp_avg_sq = v,
                .compute = c,
                .bias_correction = corrections}},
              {}, scalars, step);
      });
    }
  }
}
