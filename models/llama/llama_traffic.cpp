#include "models/llama/llama_traffic.h"

#include <algorithm>

namespace ottava {
namespace {

class Activations {
 public:
  Activations(CommStats& out, int ranks, int rank) : out_(out), ranks_(ranks), rank_(rank) {}

  void move(Collective collective, int64_t times, int64_t bytes) {
    for (int64_t i = 0; i < times; ++i)
      out_.record({collective, "tp", "", bytes, bytes / ranks_ * (ranks_ - 1)});
  }
  void all_reduce(int64_t count) {
    out_.record({Collective::all_reduce, "tp", "", count * 4, all_reduce_sent(count, 4, ranks_, rank_)});
  }

 private:
  CommStats& out_;
  int ranks_, rank_;
};

/// The gathers of one linear layer in a micro-batch: products of one column-parallel layer's parts, or a
/// row-parallel one.
class LayerGathers {
 public:
  LayerGathers(const LlamaStep& step, int64_t dim, Activations& activations)
      : step_(step),
        tokens_(step.batch * step.sequence),
        dim_(dim),
        whole_(tokens_ * dim * static_cast<int64_t>(size_of(step.compute))),
        activations_(activations) {}

  void column(const ParameterSpec& spec, bool recomputed) {
    const std::vector<const fp8::GemmDecision*> pieces = pieces_of(spec);
    forward(pieces, true);
    if (recomputed) forward(pieces, false);
    // Kept for the weight gradient: bytes of pieces with one scale, else the compute type.
    bool keeps_x = false;
    for (const fp8::GemmDecision* piece : pieces) {
      if (piece && piece->recipe && piece->recipe->weight_gradient.is_fp8 && has_one_scale(*piece)) {
        activations_.move(Collective::all_gather, 1, tokens_ * dim_);
      } else {
        keeps_x = true;
      }
    }
    if (keeps_x) activations_.move(Collective::all_gather, 1, whole_);
  }
  void row(const ParameterSpec& spec) {
    const fp8::GemmDecision* piece = pieces_of(spec)[0];
    if (step_.gathers_float8 && piece && piece->recipe && piece->recipe->weight_gradient.is_fp8 &&
        has_one_scale(*piece)) {
      activations_.all_reduce(1);
      activations_.move(Collective::all_gather, 1, tokens_ * dim_);
    } else {
      activations_.move(Collective::all_gather, 1, whole_);
    }
  }

 private:
  static bool has_one_scale(const fp8::GemmDecision& d) {
    return d.recipe->forward.a.granularity == fp8::Granularity::tensor;
  }

  std::vector<const fp8::GemmDecision*> pieces_of(const ParameterSpec& spec) const {
    if (const fp8::GemmDecision* whole = step_.float8_policy.find(spec.name)) return {whole};
    if (step_.float8_policy.decisions.empty()) return {nullptr};
    std::vector<const fp8::GemmDecision*> pieces;
    for (const ParameterPart& part : spec.parts) {
      pieces.push_back(step_.float8_policy.find(spec.name.substr(0, spec.name.rfind('.') + 1) + part.name));
    }
    return pieces;
  }

  void forward(const std::vector<const fp8::GemmDecision*>& pieces, bool measures) {
    const bool in_bytes = step_.gathers_float8 && pieces.size() == 1 && pieces[0] && pieces[0]->recipe;
    const fp8::Granularity granularity =
        in_bytes ? pieces[0]->recipe->forward.a.granularity : fp8::Granularity::tensor;
    if (!in_bytes || granularity == fp8::Granularity::block_1x32)
      return activations_.move(Collective::all_gather, 1, whole_);
    if (granularity == fp8::Granularity::tensor && measures) activations_.all_reduce(1);
    activations_.move(Collective::all_gather, 1, tokens_ * dim_);
    if (granularity != fp8::Granularity::tensor) {
      activations_.move(Collective::all_gather, 1, fp8::scale_shape(granularity, tokens_, dim_).numel() * 4);
    }
  }

  const LlamaStep& step_;
  int64_t tokens_, dim_, whole_;
  Activations& activations_;
};

/// Columns of the gathered logits, the padding of every rank included.
int64_t logits_columns(const LlamaConfig& config, const LlamaStep& step) {
  const fp8::GemmDecision* output = step.float8_policy.find("output");
  return output && output->padded_rows > 0 ? output->padded_rows : config.vocab_size;
}

/// Recipe delayed: the largest amaxes of all products' x and dy, over all ranks.
void add_history_traffic(CommStats& out, const fp8::Policy& policy, const TrafficLayout& layout) {
  int64_t products = 0;
  bool delays = false;
  for (const fp8::GemmDecision& d : policy.decisions) {
    if (!d.recipe) continue;
    ++products;
    delays |= d.recipe->has_history();
  }
  const ShardCoordinates& at = layout.at;
  const int world = at.shard_size * at.tp_size * layout.replicas;
  if (!delays || world == 1) return;
  const int rank = (at.replica_rank * at.shard_size + at.shard_rank) * at.tp_size + at.tp_rank;
  out.record(
      {Collective::all_reduce, "world", "", 8 * products, all_reduce_sent(2 * products, 4, world, rank)});
}

}  // namespace

std::vector<UnitGatherCounts> llama_gathers(const LlamaConfig& config,
                                            const std::vector<Recompute>& recompute) {
  std::vector<UnitGatherCounts> gathers(static_cast<size_t>(config.layers) + 2,
                                        {.total = 2, .forward = 1, .backward = 1});
  for (size_t i = 0; i < recompute.size(); ++i) gathers[i + 1].forward += recompute[i] == Recompute::block;
  gathers.front() = {.total = config.tied_embeddings ? 2 : 1};
  gathers.back() = {.total = 1, .forward = 1, .backward = 1};
  return gathers;
}

CommStats llama_traffic(const LlamaConfig& config, const LlamaStep& step, const FsdpOptions& parameters,
                        const TrafficLayout& layout) {
  CommStats out;
  const LlamaParameters table = llama_parameters(config);
  add_parameter_traffic(out, table.specs, parameters, layout, llama_gathers(config, step.options.recompute));
  add_history_traffic(out, step.float8_policy, layout);
  const int tp = layout.at.tp_size;
  if (tp == 1) return out;
  Activations activations(out, tp, layout.at.tp_rank);
  const int64_t tokens = step.batch * step.sequence,
                bytes = tokens * config.dim * static_cast<int64_t>(size_of(step.compute));
  const std::vector<Recompute>& recompute = step.options.recompute;
  const int64_t again = std::count(recompute.begin(), recompute.end(), Recompute::block);
  LayerGathers layers(step, config.dim, activations);
  for (int64_t m = 0; m < layout.micro_batches; ++m) {
    for (size_t i = 0; i < table.blocks.size(); ++i) {
      const LlamaBlockParameters& block = table.blocks[i];
      const bool recomputed = i < recompute.size() && recompute[i] == Recompute::block;
      for (int p : {block.wqkv, block.w13}) layers.column(table.specs[static_cast<size_t>(p)], recomputed);
      for (int p : {block.wo, block.w2}) layers.row(table.specs[static_cast<size_t>(p)]);
    }
    activations.move(Collective::all_gather, 2, bytes);
    activations.move(Collective::reduce_scatter, 4 * config.layers + again + 2, bytes);
    for (int64_t begin = 0; begin < tokens; begin += step.options.loss_chunk_rows) {
      const int64_t rows = std::min(tokens - begin, step.options.loss_chunk_rows);
      if (step.options.loss_parallel) {
        for (int i = 0; i < 3; ++i) activations.all_reduce(rows);
      } else {
        activations.move(Collective::all_gather, 1, rows * logits_columns(config, step) * 4);
      }
    }
  }
  return out;
}

}  // namespace ottava
