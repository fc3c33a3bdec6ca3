#include "models/llama/llama_model.h"

#include <algorithm>
#include <utility>

#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/host_values.h"

namespace ottava {

LlamaModel::LlamaModel(const LlamaConfig& config, LlamaParameters parameters, Stream& stream, Arena& arena,
                       int tp, LlamaModelOptions options, const LlamaFloat8& float8)
    : config_(config),
      parameters_(std::move(parameters)),
      last_(parameters_.units - 1),
      options_(std::move(options)),
      rope_table_(arena.persistent("rope table", DType::f32, {options_.sequence, config.head_dim})),
      head_(config, parameters_.norm, parameters_.output, float8.output,
            {.chunk_rows = options_.loss_chunk_rows,
             .loss_parallel = options_.loss_parallel,
             .z_loss_weight = options_.z_loss_weight}) {
  if (config.sliding_window && options_.sequence > *config.sliding_window) {
    fail<ConfigError>(
        "model",
        "sequences of {} tokens are longer than sliding_window {} in the model's config.json, and attention "
        "within a window is not supported: use at most {} tokens",
        options_.sequence, *config.sliding_window, *config.sliding_window);
  }
  options_.recompute.resize(parameters_.blocks.size(), Recompute::nothing);
  for (size_t i = 0; i < parameters_.blocks.size(); ++i) {
    LlamaBlockPieces pieces = float8.blocks.empty() ? LlamaBlockPieces{} : float8.blocks[i];
    pieces.set(options_.overlap);
    blocks_.emplace_back(config, parameters_.blocks[i], tp, std::move(pieces));
  }
  backward_uses_.assign(parameters_.units, WeightUse::backward);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (recomputes_products(options_.recompute[i])) backward_uses_[i + 1] = WeightUse::both;
  }
  if (stream.is_meta()) return;
  std::vector<float> table(rope_table_.numel());
  fill_rope_table(table.data(), options_.sequence, config.head_dim, config.rope_theta, config.rope_scaling);
  copy_from_host(stream, table.data(), rope_table_);
  stream.synchronize();
}

LlamaBatch LlamaModel::batch_of(const MicroBatch& batch) const {
  const int64_t tokens = batch.tokens.numel();
  auto flat = [&](const Tensor& t) { return t.empty() ? t : t.reshape({tokens}); };
  return {.batch = batch.tokens.shape[0],
          .sequence = batch.tokens.shape[1],
          .rope_table = rope_table_,
          .positions = flat(batch.positions),
          .document_start = flat(batch.document_start),
          .fused_attention = options_.fused_attention.get()};
}

Allocation LlamaModel::embed(const StepContext& c, const Tensor& tokens) const {
  StepContext::Scope scope(c, "tok_embeddings");
  Tensor table = c.parameters.weight(parameters_.embedding);
  const bool is_part = c.tensor_parallel.size() > 1;
  Allocation x = c.arena.allocate("tok_embeddings", c.compute, {tokens.numel(), config_.dim},
                                  is_part ? MemoryCategory::scratch : MemoryCategory::activations);
  embedding_forward(c.stream, {.tokens = tokens.reshape({tokens.numel()}),
                               .table = table,
                               .out = x,
                               .vocab_begin = table.rows() * c.tensor_parallel.rank()});
  return c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, x, "tok_embeddings",
                                               MemoryCategory::activations);
}

void LlamaModel::embed_backward(const StepContext& c, const Tensor& tokens, const Allocation& dout) const {
  StepContext::Scope scope(c, "tok_embeddings");
  Allocation all = c.tensor_parallel.gather_rows(c.stream, c.arena, dout, "tok_embeddings");
  Tensor dtable = c.parameters.zeroed_gradient(parameters_.embedding);
  Allocation workspace = c.scratch("embedding.workspace", DType::i32,
                                   embedding_backward_workspace(tokens.numel(), dtable.rows()));
  embedding_backward(c.stream, {.tokens = tokens.reshape({tokens.numel()}),
                                .dout = all,
                                .dtable = dtable,
                                .workspace = workspace,
                                .vocab_begin = dtable.rows() * c.tensor_parallel.rank()});
}

namespace {

// In a trace, everything that a layer does and waits for. The label is made only if there is a trace.
std::string layer_label(const StepContext& c, size_t layer, std::string_view pass) {
  return c.profile ? fmt::format("layers.{} {}", layer, pass) : std::string();
}

}  // namespace

ResidualStream LlamaModel::enter(const StepContext& c, StageUnits units, const MicroBatch& micro,
                                 Allocation in) const {
  if (!has_embedding(units)) return {std::move(in), {}};
  c.parameters.unshard(0);
  c.parameters.prefetch(0, units.end - 1);
  ResidualStream stream{embed(c, micro.tokens), {}};
  c.parameters.reshard(0);
  return stream;
}

Allocation LlamaModel::leave(const StepContext& c, ResidualStream stream) const {
  if (stream.delta) add(c.stream, stream.sum, stream.delta, stream.delta);
  return stream.delta ? stream.delta : stream.sum;
}

void LlamaModel::forward_backward(const StepContext& c, const MicroBatch& micro, const Loss& loss) const {
  if (c.float8) c.float8->begin_micro_batch(c.stream);
  LlamaSaved saved;
  forward(c, all_units(), micro, loss, {}, saved);
  backward(c, all_units(), micro, {}, std::move(saved));
}

Allocation LlamaModel::forward(const StepContext& c, StageUnits units, const MicroBatch& micro,
                               const Loss& loss, Allocation in, LlamaSaved& saved) const {
  const LlamaBatch batch = batch_of(micro);
  Fsdp& parameters = c.parameters;
  saved = {.blocks = std::vector<LlamaBlockSaved>(blocks_.size())};
  ResidualStream stream = enter(c, units, micro, std::move(in));
  for (int unit = std::max(units.begin, 1); unit < std::min(units.end, last_); ++unit) {
    const size_t i = unit - 1;
    const StepProfile::Scope pass(c.profile, layer_label(c, i, "forward"), StepProfile::Kind::pass);
    parameters.unshard(unit);
    parameters.prefetch(unit, units.end - 1);
    stream = blocks_[i].forward(c, batch, std::move(stream), options_.recompute[i], saved.blocks[i]);
    parameters.reshard(unit);
  }
  if (!has_head(units)) return leave(c, std::move(stream));
  parameters.unshard(last_, WeightUse::both);
  if (config_.tied_embeddings) parameters.unshard(0, WeightUse::both);
  if (last_ > units.begin) parameters.prefetch(last_, std::max(units.begin, 1), backward_uses_);
  saved.gradient = head_.forward_backward(c, std::move(stream),
                                          {.targets = micro.targets.reshape({micro.targets.numel()}),
                                           .sum = loss.sum,
                                           .grad_scale = loss.grad_scale,
                                           .sequence_sums = micro.sequence_losses,
                                           .z_loss_sum = micro.z_loss_sum},
                                          units.begin < last_ ? &blocks_.back().last_linear() : nullptr);
  if (config_.tied_embeddings) parameters.reshard(0);
  parameters.reshard(last_);
  return {};
}

Allocation LlamaModel::go_back(const StepContext& c, StageUnits units, const MicroBatch& micro,
                               Allocation dout, LlamaSaved& saved) const {
  const LlamaBatch batch = batch_of(micro);
  const int first_block = std::max(units.begin, 1), end_block = std::min(units.end, last_);
  Fsdp& parameters = c.parameters;
  const auto reduce = [&](int unit) {
    if (!c.deferred) parameters.reduce_gradients(unit);
  };
  LinearOperand gradient = std::move(saved.gradient);
  if (has_head(units)) {
    reduce(last_);
  } else if (end_block > first_block) {
    gradient = blocks_[end_block - 2].last_linear().received_output_gradient(c, std::move(dout));
  } else {
    gradient.values = std::move(dout);
  }
  for (int unit = end_block - 1; unit >= first_block; --unit) {
    const size_t i = unit - 1;
    const StepProfile::Scope pass(c.profile, layer_label(c, i, "backward"), StepProfile::Kind::pass);
    parameters.unshard(unit, backward_uses_[unit]);
    parameters.prefetch(unit, first_block, backward_uses_);
    gradient = blocks_[i].backward(c, batch, std::move(gradient), std::move(saved.blocks[i]),
                                   unit > first_block ? &blocks_[i - 1].last_linear() : nullptr);
    parameters.reshard(unit);
    reduce(unit);
  }
  if (!has_embedding(units)) return gradient.values;
  embed_backward(c, micro.tokens, gradient.values);
  reduce(0);
  return {};
}

Allocation LlamaModel::backward(const StepContext& c, StageUnits units, const MicroBatch& micro,
                                Allocation dout, LlamaSaved saved) const {
  return go_back(c, units, micro, std::move(dout), saved);
}

Allocation LlamaModel::input_gradient(const StepContext& context, StageUnits units, const MicroBatch& micro,
                                      Allocation dout, LlamaSaved& saved) const {
  StepContext c = context;
  c.deferred = &saved.weight_gradients;
  return go_back(c, units, micro, std::move(dout), saved);
}

void LlamaModel::weight_gradients(const StepContext& c, StageUnits units, LlamaSaved saved) const {
  for (auto& accumulate : saved.weight_gradients) {
    accumulate(c);
    accumulate = {};  // with its operands
  }
  for (int unit = units.end; unit-- > units.begin;) c.parameters.reduce_gradients(unit);
}

Allocation LlamaModel::evaluate(const StepContext& c, StageUnits units, const MicroBatch& micro,
                                const Tensor& loss_sum, Allocation in) const {
  const LlamaBatch batch = batch_of(micro);
  ResidualStream stream = enter(c, units, micro, std::move(in));
  for (int unit = std::max(units.begin, 1); unit < std::min(units.end, last_); ++unit) {
    c.parameters.unshard(unit);
    c.parameters.prefetch(unit, units.end - 1);
    LlamaBlockSaved dropped;
    stream = blocks_[unit - 1].forward(c, batch, std::move(stream), Recompute::block, dropped);
    c.parameters.reshard(unit);
  }
  if (!has_head(units)) return leave(c, std::move(stream));
  c.parameters.unshard(last_);
  if (config_.tied_embeddings) c.parameters.unshard(0);
  head_.evaluate(c, std::move(stream),
                 {.targets = micro.targets.reshape({micro.targets.numel()}),
                  .sum = loss_sum,
                  .token_losses = micro.token_losses});
  if (config_.tied_embeddings) c.parameters.reshard(0);
  c.parameters.reshard(last_);
  return {};
}

void LlamaModel::generate(const StepContext& c, const Generation& in, const Tensor& logits) const {
  LlamaBatch batch = batch_of({.tokens = in.tokens, .positions = in.positions});
  c.parameters.unshard(0);
  ResidualStream stream{embed(c, in.tokens), {}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const int unit = static_cast<int>(i) + 1;
    c.parameters.unshard(unit);
    stream = blocks_[i].generate(c, batch, std::move(stream), in.caches[i], in.position);
    c.parameters.reshard(unit);
  }
  c.parameters.unshard(last_);
  // Only the last token's logits are wanted: for a prompt (one sequence), its last row.
  const int64_t rows = in.tokens.numel(), wanted = in.tokens.shape[0];
  auto last_rows = [&](const Allocation& x) {
    Allocation tail = c.scratch("last token", c.compute, {wanted, config_.dim});
    copy(c.stream, x.tensor().slice(rows - wanted, rows), tail);
    return tail;
  };
  head_.logits(c, {last_rows(stream.sum), last_rows(stream.delta)}, logits);
  c.parameters.reshard(0);
  c.parameters.reshard(last_);
}

}  // namespace ottava
