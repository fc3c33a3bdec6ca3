#include "models/llama/llama_block.h"

#include <algorithm>
#include <utility>

#include "core/ops/attention/attention.h"
#include "core/ops/attention/key_value_cache.h"
#include "core/ops/elementwise.h"
#include "core/ops/norm/qk_norm.h"

namespace ottava {

namespace {

std::vector<LinearPiece> pieces_or(std::vector<LinearPiece> pieces, int64_t rows) {
  if (pieces.empty()) pieces.push_back({.rows = {0, rows}});
  return pieces;
}

}  // namespace

// The norms, the SwiGLU and RoPE measure what they write; attention does not.
LlamaBlock::LlamaBlock(const LlamaConfig& config, const LlamaBlockParameters& p, int tp,
                       LlamaBlockPieces pieces)
    : parameters_(p),
      heads_{config.heads / tp, std::max<int64_t>(config.kv_heads / tp, 1), config.head_dim},
      norm_eps_(config.norm_eps),
      wqkv_("attention.wqkv", LinearStyle::column, p.wqkv, p.wqkv_bias,
            pieces_or(std::move(pieces.wqkv), (heads_.heads + 2 * heads_.kv_heads) * heads_.head_dim),
            {.input = true, .output_gradient = true}),
      wo_("attention.wo", LinearStyle::row, p.wo, -1, pieces_or(std::move(pieces.wo), config.dim),
          {.output_gradient = true}),
      w13_("feed_forward.w13", LinearStyle::column, p.w13, -1,
           pieces_or(std::move(pieces.w13), 2 * config.ffn_dim / tp),
           {.input = true, .output_gradient = true}),
      w2_("feed_forward.w2", LinearStyle::row, p.w2, -1, pieces_or(std::move(pieces.w2), config.dim),
          {.input = true, .output_gradient = true}) {}

ResidualStream LlamaBlock::forward(const StepContext& c, const LlamaBatch& batch, ResidualStream in,
                                   Recompute recompute, LlamaBlockSaved& saved) const {
  const bool keeps = recompute == Recompute::nothing;
  ResidualStream middle, out;
  {
    Produced a = normalise(c, std::move(in), parameters_.attention_norm, saved.x, saved.attention_rstd,
                           "attention_norm", wqkv_, keeps);
    middle = {saved.x, attention_half(c, batch, a, recompute, saved)};
  }
  {
    Produced b = normalise(c, std::move(middle), parameters_.ffn_norm, saved.h, saved.ffn_rstd, "ffn_norm",
                           w13_, keeps);
    out = {saved.h, feed_forward_half(c, b, recompute, saved)};
  }
  if (recompute == Recompute::block) {
    Allocation x = std::move(saved.x);
    saved = {};
    saved.x = std::move(x);
  }
  return out;
}

LlamaBlock::Produced LlamaBlock::normalise(const StepContext& c, ResidualStream in, int weight,
                                           Allocation& sum, Allocation& rstd, std::string_view name,
                                           const Linear& reader, bool keeps) const {
  StepContext::Scope scope(c, name);
  const Tensor& x = in.sum;
  Produced out;
  rstd = c.activation("rstd", DType::f32, {x.rows()});
  RmsNormForward args{.x = x, .weight = c.parameters.weight(weight), .rstd = rstd, .eps = norm_eps_};
  if (in.delta) args.residual = args.sum = in.delta.tensor();
  if (!keeps && reader.takes_codes()) {
    Float8Product::Produced q = reader.input_codes(c, x.shape);
    args.float8 = q.output;
    rms_norm_forward(c.stream, args);
    out.codes = std::move(q.codes);
  } else {
    out.values = c.activation(name, c.compute, x.shape);
    args.y = out.values;
    args.amax = reader.input_amax(c);
    rms_norm_forward(c.stream, args);
  }
  sum = in.delta ? in.delta : in.sum;
  return out;
}

LlamaBlock::Produced LlamaBlock::activate(const StepContext& c, const Tensor& gate_up, bool keeps) const {
  StepContext::Scope scope(c, "feed_forward.swiglu");
  const Shape shape{gate_up.rows(), gate_up.cols() / 2};
  Produced out;
  if (!keeps && w2_.takes_codes()) {
    Float8Product::Produced q = w2_.input_codes(c, shape);
    swiglu_forward(c.stream, {.gate_up = gate_up, .float8 = q.output});
    out.codes = std::move(q.codes);
  } else {
    out.values = c.activation("feed_forward.swiglu", c.compute, shape);
    swiglu_forward(c.stream, {.gate_up = gate_up, .out = out.values, .amax = w2_.input_amax(c)});
  }
  return out;
}

Allocation LlamaBlock::normalise_again(const StepContext& c, const Allocation& sum, const Allocation& rstd,
                                       int weight, std::string_view name) const {
  StepContext::Scope scope(c, name);
  Allocation y = c.scratch(name, c.compute, sum.tensor().shape);
  rms_norm_forward(c.stream,
                   {.x = sum, .weight = c.parameters.weight(weight), .y = y, .rstd = rstd, .eps = norm_eps_});
  return y;
}

void LlamaBlock::project(const StepContext& c, const LlamaBatch& batch, const Produced& x,
                         LlamaBlockSaved& saved, LinearInput* keep) const {
  saved.qkv = x.read_by(wqkv_, c, keep);
  if (parameters_.q_norm >= 0) {
    StepContext::Scope scope(c, "attention.qk_norm");
    saved.projected = saved.qkv;
    saved.qkv = c.activation("attention.qkv", c.compute, saved.projected.tensor().shape);
    saved.qk_rstd =
        c.activation("qk_rstd", DType::f32, {saved.qkv.tensor().rows(), heads_.heads + heads_.kv_heads});
    qk_norm_forward(c.stream, {.qkv = saved.projected,
                               .weight_q = c.parameters.weight(parameters_.q_norm),
                               .weight_k = c.parameters.weight(parameters_.k_norm),
                               .out = saved.qkv,
                               .rstd = saved.qk_rstd,
                               .heads = heads_,
                               .eps = norm_eps_});
  }
  StepContext::Scope scope(c, "attention.rope");
  rope(c.stream, {.qkv = saved.qkv,
                  .table = batch.rope_table,
                  .positions = batch.positions,
                  .heads = heads_,
                  .sequence = batch.sequence});
}

void LlamaBlock::attend(const StepContext& c, const LlamaBatch& batch, LlamaBlockSaved& saved) const {
  StepContext::Scope scope(c, "attention.core");
  int64_t tokens = batch.batch * batch.sequence;
  saved.attention = c.activation("attention.core", c.compute, {tokens, heads_.heads * heads_.head_dim});
  saved.lse = c.activation("lse", DType::f32, {batch.batch, heads_.heads, batch.sequence});
  int64_t bytes = attention_workspace_bytes(c.stream, Pass::forward, c.compute, heads_, batch.batch,
                                            batch.sequence, batch.fused_attention);
  Allocation workspace = c.scratch("attention.workspace", DType::u8, {bytes});
  attention_forward(c.stream, {.qkv = saved.qkv,
                               .out = saved.attention,
                               .lse = saved.lse,
                               .document_start = batch.document_start,
                               .workspace = workspace,
                               .heads = heads_,
                               .batch = batch.batch,
                               .sequence = batch.sequence,
                               .fused = batch.fused_attention});
}

Allocation LlamaBlock::attention_half(const StepContext& c, const LlamaBatch& batch,
                                      const Produced& normalised, Recompute recompute,
                                      LlamaBlockSaved& saved) const {
  project(c, batch, normalised, saved, recompute == Recompute::nothing ? &saved.wqkv : nullptr);
  attend(c, batch, saved);
  return wo_.forward(c, saved.attention, recompute == Recompute::nothing ? &saved.wo : nullptr);
}

Allocation LlamaBlock::feed_forward_half(const StepContext& c, const Produced& normalised,
                                         Recompute recompute, LlamaBlockSaved& saved) const {
  const bool keeps = recompute == Recompute::nothing;
  saved.gate_up = normalised.read_by(w13_, c, keeps ? &saved.w13 : nullptr);
  const Produced s = activate(c, saved.gate_up, keeps);
  return s.read_by(w2_, c, keeps ? &saved.w2 : nullptr);
}

ResidualStream LlamaBlock::generate(const StepContext& c, const LlamaBatch& batch, ResidualStream in,
                                    const KeyValueCache& cache, int64_t position) const {
  LlamaBlockSaved now;
  Produced a = normalise(c, std::move(in), parameters_.attention_norm, now.x, now.attention_rstd,
                         "attention_norm", wqkv_, false);
  project(c, batch, a, now, nullptr);
  const Tensor& qkv = now.qkv;
  Allocation q = c.scratch("attention.q", c.compute, {qkv.rows(), heads_.heads * heads_.head_dim});
  store_key_values(c.stream, {.qkv = qkv,
                              .q = q,
                              .keys = cache.keys,
                              .values = cache.values,
                              .heads = heads_,
                              .batch = batch.batch,
                              .sequence = batch.sequence,
                              .position = position});
  if (batch.sequence > 1) {
    attend(c, batch, now);
  } else {
    now.attention = c.scratch("attention.core", c.compute, q.tensor().shape);
    attention_decode(c.stream, {.q = q,
                                .keys = cache.keys,
                                .values = cache.values,
                                .out = now.attention,
                                .heads = heads_,
                                .length = position + 1});
  }
  ResidualStream middle{now.x, wo_.forward(c, now.attention, nullptr)};
  Produced b =
      normalise(c, std::move(middle), parameters_.ffn_norm, now.h, now.ffn_rstd, "ffn_norm", w13_, false);
  return {now.h, feed_forward_half(c, b, Recompute::block, now)};
}

void LlamaBlock::recompute_block(const StepContext& context, const LlamaBatch& batch,
                                 LlamaBlockSaved& saved) const {
  StepContext c = context;
  c.is_recomputing = true;
  Allocation x = saved.x;
  ResidualStream middle;
  {
    Produced a = normalise(c, {x, {}}, parameters_.attention_norm, saved.x, saved.attention_rstd,
                           "attention_norm", wqkv_, false);
    middle = {x, attention_half(c, batch, a, Recompute::elementwise, saved)};
  }
  Produced b =
      normalise(c, std::move(middle), parameters_.ffn_norm, saved.h, saved.ffn_rstd, "ffn_norm", w13_, false);
  saved.gate_up = b.read_by(w13_, c, nullptr);  // w2's output is not needed again
}

StreamGradient LlamaBlock::backward(const StepContext& c, const LlamaBatch& batch, StreamGradient dout,
                                    LlamaBlockSaved saved, const Linear* before) const {
  if (!saved.qkv) recompute_block(c, batch, saved);
  StreamGradient dh = feed_forward_backward(c, std::move(dout), saved);
  return attention_backward_half(c, batch, std::move(dh), saved, before);
}

Float8Allocation LlamaBlock::activate_backward(const StepContext& c, SwigluBackward args) const {
  StepContext::Scope scope(c, "feed_forward.swiglu");
  if (!w13_.takes_gradient_codes()) {
    args.amax = w13_.output_gradient_amax(c);
    swiglu_backward(c.stream, args);
    return {};
  }
  Float8Product::Produced q = w13_.output_gradient_codes(c, args.dgate_up.shape);
  args.float8 = q.output;
  swiglu_backward(c.stream, args);
  return std::move(q.codes);
}

StreamGradient LlamaBlock::feed_forward_backward(const StepContext& c, StreamGradient dout,
                                                 LlamaBlockSaved& saved) const {
  Allocation db;
  Float8Allocation dgate_up;
  {
    LinearOutputGradient dy = w2_.output_gradient(c, dout.values, dout.codes);
    dout.codes = {};
    const Tensor& gate_up = saved.gate_up;
    Allocation s;
    {
      Allocation ds = w2_.input_gradient(c, dy);
      if (!saved.w2) s = c.scratch("feed_forward.swiglu", c.compute, ds.tensor().shape);
      dgate_up = activate_backward(c, {.dout = ds, .gate_up = gate_up, .dgate_up = gate_up, .out = s});
    }
    if (!saved.w2) saved.w2 = w2_.keep(c, s);
    w2_.weight_gradient(c, dy, saved.w2);
    saved.w2 = {};
  }
  {
    if (!saved.w13)
      saved.w13 = w13_.keep(c, normalise_again(c, saved.h, saved.ffn_rstd, parameters_.ffn_norm, "ffn_norm"));
    LinearOutputGradient dy = w13_.output_gradient(c, saved.gate_up, dgate_up);
    dgate_up = {};
    saved.gate_up.release();  // in FP8, dy is codes by now
    w13_.weight_gradient(c, dy, saved.w13);
    saved.w13 = {};
    db = w13_.input_gradient(c, dy);
  }
  StreamGradient dh = pass_norm(c, db, saved.h, saved.ffn_rstd, parameters_.ffn_norm, dout.values, &wo_);
  saved.h.release();
  return dh;
}

StreamGradient LlamaBlock::attention_backward_half(const StepContext& c, const LlamaBatch& batch,
                                                   StreamGradient dh, LlamaBlockSaved& saved,
                                                   const Linear* before) const {
  Allocation dqkv;
  {
    Allocation dattention;
    {
      LinearOutputGradient dy = wo_.output_gradient(c, dh.values, dh.codes);
      dh.codes = {};
      if (!saved.wo) saved.wo = wo_.keep(c, saved.attention);  // its codes were not worth keeping beside it
      wo_.weight_gradient(c, dy, saved.wo);
      saved.wo = {};
      dattention = wo_.input_gradient(c, dy);
    }
    StepContext::Scope scope(c, "attention.core");
    dqkv = c.scratch("attention.dqkv", c.compute, saved.qkv.tensor().shape);
    int64_t bytes = attention_workspace_bytes(c.stream, Pass::backward, c.compute, heads_, batch.batch,
                                              batch.sequence, batch.fused_attention);
    Allocation workspace = c.scratch("attention.workspace", DType::u8, {bytes});
    attention_backward(c.stream, {.qkv = saved.qkv,
                                  .out = saved.attention,
                                  .lse = saved.lse,
                                  .dout = dattention,
                                  .dqkv = dqkv,
                                  .document_start = batch.document_start,
                                  .workspace = workspace,
                                  .heads = heads_,
                                  .batch = batch.batch,
                                  .sequence = batch.sequence,
                                  .fused = batch.fused_attention});
  }
  saved.qkv.release();
  saved.attention.release();
  {
    StepContext::Scope scope(c, "attention.rope");
    rope(c.stream, {.qkv = dqkv,
                    .table = batch.rope_table,
                    .positions = batch.positions,
                    .heads = heads_,
                    .sequence = batch.sequence,
                    .inverse = true,
                    .amax = saved.projected ? Tensor{} : wqkv_.output_gradient_amax(c)});
  }
  if (saved.projected) {
    StepContext::Scope scope(c, "attention.qk_norm");
    Allocation workspace = c.scratch("qk_norm.workspace", DType::f32, qk_norm_workspace(c.stream, heads_));
    qk_norm_backward(c.stream, {.dqkv = dqkv,
                                .qkv = saved.projected,
                                .weight_q = c.parameters.weight(parameters_.q_norm),
                                .weight_k = c.parameters.weight(parameters_.k_norm),
                                .rstd = saved.qk_rstd,
                                .dweight_q = c.parameters.zeroed_gradient(parameters_.q_norm),
                                .dweight_k = c.parameters.zeroed_gradient(parameters_.k_norm),
                                .workspace = workspace,
                                .heads = heads_,
                                .amax = wqkv_.output_gradient_amax(c)});
    saved.projected.release();
  }
  Allocation da;
  {
    if (!saved.wqkv) {
      saved.wqkv = wqkv_.keep(
          c, normalise_again(c, saved.x, saved.attention_rstd, parameters_.attention_norm, "attention_norm"));
    }
    LinearOutputGradient dy = wqkv_.output_gradient(c, dqkv);
    wqkv_.weight_gradient(c, dy, saved.wqkv);
    saved.wqkv = {};
    da = wqkv_.input_gradient(c, dy);
    dqkv.release();
  }
  return pass_norm(c, da, saved.x, saved.attention_rstd, parameters_.attention_norm, dh.values, before);
}

StreamGradient LlamaBlock::pass_norm(const StepContext& c, const Allocation& dy, const Allocation& sum,
                                     const Allocation& rstd, int weight, const Allocation& stream_gradient,
                                     const Linear* reader) const {
  return {stream_gradient, norm_backward(c,
                                         {.dy = dy,
                                          .x = sum,
                                          .weight = c.parameters.weight(weight),
                                          .rstd = rstd,
                                          .dresidual = stream_gradient,
                                          .dx = stream_gradient,
                                          .dweight = c.parameters.zeroed_gradient(weight)},
                                         reader)};
}

Float8Allocation norm_backward(const StepContext& c, RmsNormBackward args, const Linear* reader) {
  StepContext::Scope scope(c, "norm.backward");
  Allocation workspace = c.scratch("norm.workspace", DType::f32, rms_norm_workspace(c.stream, args.x.cols()));
  args.workspace = workspace;
  if (!reader || !reader->takes_gradient_codes()) {
    if (reader) args.amax = reader->output_gradient_amax(c);
    rms_norm_backward(c.stream, args);
    return {};
  }
  Float8Product::Produced q = reader->output_gradient_codes(c, args.dx.shape);
  args.float8 = q.output;
  rms_norm_backward(c.stream, args);
  return std::move(q.codes);
}

}  // namespace ottava
