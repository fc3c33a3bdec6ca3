#include "models/llama/attention_layer.h"

#include <algorithm>
#include <utility>

#include "core/ops/attention/key_value_cache.h"
#include "core/ops/elementwise.h"
#include "core/ops/norm/qk_norm.h"
#include "core/ops/rope.h"

namespace ottava {

namespace {

using Producer = Float8Product::Producer;

}  // namespace

// RoPE's and QK-norm's backward measure what they write; attention does not.
AttentionLayer::AttentionLayer(const LlamaConfig& config, const LlamaBlockParameters& p, int tp,
                               Pieces pieces)
    : parameters_(p),
      heads_{config.heads / tp, std::max<int64_t>(config.kv_heads / tp, 1), config.head_dim},
      norm_("attention_norm", p.attention_norm, config.norm_eps),
      norm_eps_(config.norm_eps),
      wqkv_("attention.wqkv", LinearStyle::column, {.weight = p.wqkv, .bias = p.wqkv_bias},
            pieces_or_one(std::move(pieces.wqkv), heads_.row()), {.x = Producer::codes, .dy = Producer::amax},
            pieces.wqkv_overlap),
      wo_("attention.wo", LinearStyle::row, {.weight = p.wo}, pieces_or_one(std::move(pieces.wo), config.dim),
          {.x = Producer::values, .dy = Producer::codes}, pieces.wo_overlap) {}

void AttentionLayer::Saved::drop_all_but_input(bool keeps_attention) {
  Saved kept;
  kept.norm.x = std::move(norm.x);
  if (keeps_attention) kept.attention = std::move(attention), kept.lse = std::move(lse);
  *this = std::move(kept);
}

ResidualStream AttentionLayer::forward(const StepContext& c, const LlamaBatch& batch, ResidualStream in,
                                       Recompute recompute, Saved& saved) const {
  const bool keeps = recompute == Recompute::nothing;
  LinearInput *of_wqkv = keeps ? &saved.wqkv : nullptr, *of_wo = keeps ? &saved.wo : nullptr;
  const LinearOperand x = norm_.forward(c, std::move(in), wqkv_, of_wqkv, saved.norm);
  project(c, batch, x, of_wqkv, saved);
  if (!saved.attention) attend(c, batch, saved);
  return {saved.norm.x, wo_.forward(c, {.values = saved.attention}, of_wo)};
}

void AttentionLayer::project(const StepContext& c, const LlamaBatch& batch, const LinearOperand& x,
                             LinearInput* kept, Saved& saved) const {
  saved.qkv = wqkv_.forward(c, x, kept);
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

namespace {

using KeyHeads = ContextParallelGroup::KeyHeads;

std::vector<KeyHeads> groups_of(AttentionHeads heads) {
  const int64_t size = AttentionLayer::heads_at_once(heads.kv_heads);
  std::vector<KeyHeads> groups;
  for (int64_t first = 0; first < heads.kv_heads; first += size) groups.push_back({heads, first, size});
  return groups;
}

template <class Args>
void run(const StepContext& c, Pass pass, Args args, void (*op)(Stream&, const Args&)) {
  const int64_t bytes = attention_workspace_bytes(c.stream, pass, c.compute, args.heads, args.batch,
                                                  args.sequence, args.fused, args.keys);
  const Allocation workspace = c.scratch("attention.workspace", DType::u8, {bytes});
  args.workspace = workspace;
  op(c.stream, args);
}

}  // namespace

/// The rows that a call of attention takes: all, or one of the two chunks of each sequence that a
/// context-parallel rank holds.
struct AttentionLayer::Rows {
  explicit Rows(const LlamaBatch& batch) : sequences(batch.batch), tokens(sequences * batch.sequence) {}
  Rows(const ContextParallelGroup& group, const LlamaBatch& batch, int which)
      : index(which),
        sequences(batch.batch / 2),
        tokens(sequences * batch.sequence),
        first_query(group.chunk_of(which) * batch.sequence) {}
  Tensor of(const Tensor& x) const { return x.empty() ? x : x.slice(index * tokens, (index + 1) * tokens); }
  Tensor statistics(const Tensor& lse) const { return lse.slice(index * sequences, (index + 1) * sequences); }
  int64_t index = 0, sequences, tokens, first_query = 0;
};

void AttentionLayer::attend_rows(const StepContext& c, const LlamaBatch& batch, const Rows& rows,
                                 const SeparateKeys& keys, const Saved& saved) const {
  run(c, Pass::forward,
      AttentionForward{.qkv = rows.of(saved.qkv),
                       .out = rows.of(saved.attention),
                       .lse = rows.statistics(saved.lse),
                       .document_start = rows.of(batch.document_start),
                       .heads = heads_,
                       .batch = rows.sequences,
                       .sequence = batch.sequence,
                       .keys = keys,
                       .fused = batch.fused_attention},
      attention_forward);
}

void AttentionLayer::attend_rows_backward(const StepContext& c, const LlamaBatch& batch, const Rows& rows,
                                          const SeparateKeys& keys, const Allocation& dattention,
                                          const Allocation& dqkv, const Saved& saved) const {
  run(c, Pass::backward,
      AttentionBackward{.qkv = rows.of(saved.qkv),
                        .out = rows.of(saved.attention),
                        .lse = rows.statistics(saved.lse),
                        .dout = rows.of(dattention),
                        .dqkv = rows.of(dqkv),
                        .document_start = rows.of(batch.document_start),
                        .heads = heads_,
                        .batch = rows.sequences,
                        .sequence = batch.sequence,
                        .keys = keys,
                        .fused = batch.fused_attention},
      attention_backward);
}

void AttentionLayer::attend(const StepContext& c, const LlamaBatch& batch, Saved& saved) const {
  StepContext::Scope scope(c, "attention.core");
  int64_t tokens = batch.batch * batch.sequence;
  saved.attention = c.activation("attention.core", c.compute, {tokens, heads_.heads * heads_.head_dim});
  saved.lse = c.activation("lse", DType::f32, {batch.batch, heads_.heads, batch.sequence});
  if (c.context_parallel.size() > 1) return attend_apart(c, batch, saved);
  attend_rows(c, batch, Rows(batch), {}, saved);
}

// Four groups hide three quarters of what travels, and take a quarter of the memory of all heads at once.
int64_t AttentionLayer::heads_at_once(int64_t kv_heads) {
  int64_t groups = std::min<int64_t>(4, kv_heads);
  while (kv_heads % groups != 0) --groups;
  return kv_heads / groups;
}

ContextParallelGroup::Gathering AttentionLayer::gather_first_group(const StepContext& c,
                                                                   const Saved& saved) const {
  StepContext::Scope scope(c, "attention.core");
  return c.context_parallel.gather_keys_values(c.stream, c.arena, saved.qkv, groups_of(heads_)[0]);
}

void AttentionLayer::attend_apart(const StepContext& c, const LlamaBatch& batch, Saved& saved) const {
  const ContextParallelGroup& ranks = c.context_parallel;
  const std::vector<KeyHeads> groups = groups_of(heads_);
  ContextParallelGroup::Gathering next = gather_first_group(c, saved);
  for (size_t i = 0; i < groups.size(); ++i) {
    Allocation values = ranks.in_order(c.stream, c.arena, std::move(next), batch.batch / 2);
    if (i + 1 < groups.size()) next = ranks.gather_keys_values(c.stream, c.arena, saved.qkv, groups[i + 1]);
    for (int which : {0, 1}) {
      const Rows half(ranks, batch, which);
      attend_rows(c, batch, half, {values, {}, groups[i].first, half.first_query}, saved);
    }
  }
}

void AttentionLayer::attend_apart_backward(const StepContext& c, const LlamaBatch& batch,
                                           const Allocation& dattention, const Allocation& dqkv,
                                           const Saved& saved, ContextParallelGroup::Gathering next) const {
  const ContextParallelGroup& ranks = c.context_parallel;
  const std::vector<KeyHeads> groups = groups_of(heads_);
  ContextParallelGroup::Scattering before;
  for (size_t i = 0; i < groups.size(); ++i) {
    Allocation values = ranks.in_order(c.stream, c.arena, std::move(next), batch.batch / 2);
    if (i + 1 < groups.size()) next = ranks.gather_keys_values(c.stream, c.arena, saved.qkv, groups[i + 1]);
    Allocation gradients = c.scratch("key and value gradients", DType::f32, values.tensor().shape);
    fill_zero(c.stream, gradients);
    for (int which : {0, 1}) {
      const Rows half(ranks, batch, which);
      attend_rows_backward(c, batch, half, {values, gradients, groups[i].first, half.first_query}, dattention,
                           dqkv, saved);
    }
    values.release();
    if (i > 0) ranks.finish(c.stream, std::move(before), dqkv, groups[i - 1]);
    before = ranks.scatter_key_value_gradients(c.stream, c.arena, std::move(gradients), batch.batch / 2);
  }
  ranks.finish(c.stream, std::move(before), dqkv, groups.back());
}

ResidualStream AttentionLayer::generate(const StepContext& c, const LlamaBatch& batch, ResidualStream in,
                                        const KeyValueCache& cache, int64_t position) const {
  Saved now;
  const LinearOperand x = norm_.forward(c, std::move(in), wqkv_, nullptr, now.norm);
  project(c, batch, x, nullptr, now);
  const Tensor& qkv = now.qkv;
  const bool is_one_token = batch.sequence == 1;
  Allocation q;
  if (is_one_token) q = c.scratch("attention.q", c.compute, {qkv.rows(), heads_.heads * heads_.head_dim});
  store_key_values(c.stream, {.qkv = qkv,
                              .q = is_one_token ? q.tensor() : Tensor{},
                              .keys = cache.keys,
                              .values = cache.values,
                              .heads = heads_,
                              .batch = batch.batch,
                              .sequence = batch.sequence,
                              .position = position});
  if (!is_one_token) {
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
  return {now.norm.x, wo_.forward(c, {.values = now.attention}, nullptr)};
}

LinearOperand AttentionLayer::backward(const StepContext& c, const LlamaBatch& batch, LinearOperand dout,
                                       Saved& saved, const Linear* reader) const {
  Allocation dqkv, dx;
  {
    Allocation dattention;
    ContextParallelGroup::Gathering keys_values;
    {
      LinearOutputGradient dy = wo_.output_gradient(c, dout);
      dout.float8 = {};
      if (c.context_parallel.size() > 1) keys_values = gather_first_group(c, saved);
      if (!saved.wo) saved.wo = wo_.keep(c, saved.attention);  // its codes were not worth keeping beside it
      dattention = wo_.backward(c, dy, std::exchange(saved.wo, {}));
    }
    dqkv = attend_backward(c, batch, dattention, saved, std::move(keys_values));
  }
  saved.qkv.release();
  saved.attention.release();
  project_backward(c, batch, dqkv, saved);
  {
    if (!saved.wqkv) saved.wqkv = wqkv_.keep(c, norm_.again(c, saved.norm));
    LinearOutputGradient dy = wqkv_.output_gradient(c, {.values = dqkv});
    dx = wqkv_.backward(c, dy, std::exchange(saved.wqkv, {}));
    dqkv.release();
  }
  return norm_.backward(c, dx, saved.norm, dout.values, reader);
}

Allocation AttentionLayer::attend_backward(const StepContext& c, const LlamaBatch& batch,
                                           const Allocation& dattention, const Saved& saved,
                                           ContextParallelGroup::Gathering keys_values) const {
  StepContext::Scope scope(c, "attention.core");
  Allocation dqkv = c.scratch("attention.dqkv", c.compute, saved.qkv.tensor().shape);
  if (c.context_parallel.size() > 1) {
    attend_apart_backward(c, batch, dattention, dqkv, saved, std::move(keys_values));
  } else {
    attend_rows_backward(c, batch, Rows(batch), {}, dattention, dqkv, saved);
  }
  return dqkv;
}

void AttentionLayer::project_backward(const StepContext& c, const LlamaBatch& batch, const Allocation& dqkv,
                                      Saved& saved) const {
  const Tensor amax = wqkv_.place_output_gradient(c, dqkv).amax;
  {
    StepContext::Scope scope(c, "attention.rope");
    rope(c.stream, {.qkv = dqkv,
                    .table = batch.rope_table,
                    .positions = batch.positions,
                    .heads = heads_,
                    .sequence = batch.sequence,
                    .inverse = true,
                    .amax = saved.projected ? Tensor{} : amax});
  }
  if (!saved.projected) return;
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
                              .amax = amax});
  saved.projected.release();
}

}  // namespace ottava
