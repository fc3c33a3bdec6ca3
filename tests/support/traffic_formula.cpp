#include "tests/support/traffic_formula.h"

#include <algorithm>

#include "tests/support/catch.h"

namespace ottava::test {
namespace {

using fp8::Granularity;

/// Whether activations of any product travel as FP8 codes.
bool gathers_activation_codes(const LlamaFloat8& float8) {
  for (const LlamaBlockPieces& block : float8.blocks) {
    for (const auto* pieces :
         {&block.attention.wqkv, &block.attention.wo, &block.feed_forward.w13, &block.feed_forward.w2}) {
      for (const LinearPiece& piece : *pieces) {
        if (!piece.float8) continue;
        const Float8Plan& plan = piece.float8->plan();
        if (plan.x.travel == Travel::codes || plan.dy.travel == Travel::codes) return true;
      }
    }
  }
  return false;
}

/// Collectives one after the other, and the elements of all of them.
struct Moves {
  int64_t elements = 0, calls = 0;
  void add(int64_t count) { elements += count, ++calls; }
};

struct Unit {
  Moves compute, reductions;                 ///< in those types
  Moves once;                                ///< in the compute type, of weights whose codes are kept
  Moves both, forward, backward, exchanges;  ///< in bytes; of weights' codes and scales, by their use
};

class Formula {
 public:
  Formula(const TrainingShape& shape, const Layout& layout, int rank)
      : shape_(shape),
        options_(shape.parameters),
        table_(parameter_table(shape)),
        specs_(table_.specs),
        at_(layout.mesh().shard_coordinates(rank)),
        replicas_(layout.dp_replicate),
        cp_(layout.cp),
        tokens_(shape.batch * shape.sequence / layout.cp),
        element_(static_cast<int64_t>(size_of(shape.parameters.compute))) {
    align_shards(specs_, options_);
  }

  SentTotals totals() {
    if (at_.shard_size > 1) shards();
    amaxes();
    gradients_and_norm();
    if (at_.tp_size > 1) activations();
    muon();
    if (cp_ > 1) keys_and_values();
    return out_;
  }

 private:
  const ParameterSpec& spec(int p) const { return specs_[static_cast<size_t>(p)]; }
  Shape slice(const ParameterSpec& s) const { return tensor_parallel_shape(s, at_.tp_size); }
  Recompute recompute_of(size_t block) const {
    const auto& recompute = shape_.model_options.recompute;
    return block < recompute.size() ? recompute[block] : Recompute::nothing;
  }
  bool recomputes(size_t block) const { return recomputes_products(recompute_of(block)); }

  void add(const char* axis, Collective collective, int64_t calls, int64_t bytes) {
    if (calls == 0) return;
    SentTotal& total = out_[{axis, std::string(name_of(collective))}];
    total.calls += calls, total.bytes += bytes;
  }
  /// Slices of rank + 1 and of rank differ where `ranks` does not divide (comm_stats.h).
  void all_reduce(const char* axis, int64_t count, DType type, int ranks, int rank) {
    const int64_t mine = count * (rank + 1) / ranks - count * rank / ranks;
    add(axis, Collective::all_reduce, 1, (count + (ranks - 2) * mine) * static_cast<int64_t>(size_of(type)));
  }
  void over_shards(Collective collective, const Moves& moves, int64_t times, DType type) {
    const int64_t bytes = moves.elements * static_cast<int64_t>(size_of(type));
    add("dp_shard", collective, times * moves.calls, times * (bytes / at_.shard_size * (at_.shard_size - 1)));
  }

  std::vector<Unit> units() const {
    std::vector<Unit> units(static_cast<size_t>(shape_.model.layers) + 2);
    std::vector<std::vector<ShardPacking::Item>> gradients(units.size()), weights(units.size());
    const std::vector<bool> replaced = replaced_by_float8(specs_, options_, at_);
    Float8Weights::Options float8 = options_.float8;
    float8.keeps_codes = options_.keeps_float8_codes && options_.reshard != FsdpOptions::Reshard::never;
    const auto kept = kept_instead_of_weights(specs_, float8, at_);
    for (size_t p = 0; p < specs_.size(); ++p) {
      const auto u = static_cast<size_t>(specs_[p].unit);
      const ShardPacking::Item item{slice(specs_[p]), specs_[p].shard_alignment};
      const int64_t count = item.slice.numel();
      const bool is_even = item.slice[0] % (at_.shard_size * item.alignment) == 0;
      if (!is_even || count * static_cast<int64_t>(size_of(options_.compute)) < options_.packs_below_bytes) {
        gradients[u].push_back(item);
        if (!replaced[p]) weights[u].push_back(item);
        continue;
      }
      if (!replaced[p]) (kept[p].empty() ? units[u].compute : units[u].once).add(count);
      if (options_.float8_gradients && Float8Exchange::takes(specs_[p], item.slice, at_.shard_size)) {
        units[u].exchanges.add(count);
        units[u].exchanges.add(count / 32);
      } else {
        units[u].reductions.add(count);
      }
    }
    for (size_t u = 0; u < units.size(); ++u) {
      auto add_packed = [&](Moves& moves, const std::vector<ShardPacking::Item>& packed) {
        if (!packed.empty())
          moves.add(ShardPacking(packed, at_.shard_size).segment_elements() * at_.shard_size);
      };
      add_packed(units[u].reductions, gradients[u]);
      add_packed(units[u].compute, weights[u]);
    }
    for (const Float8WeightSpec& weight : options_.float8.specs) add_codes(weight, units);
    return units;
  }

  void add_codes(const Float8WeightSpec& weight, std::vector<Unit>& units) const {
    const ParameterSpec& s = spec(weight.parameter);
    const Float8WeightTravel travel = float8_weight_travel(weight, slice(s)[0], at_.shard_size);
    if (!travel.in_codes) return;
    const int64_t rows = largest_shard_rows(slice(s)[0], at_.shard_size, s.shard_alignment) * at_.shard_size,
                  columns = slice(s)[1];
    Unit& unit = units[static_cast<size_t>(s.unit)];
    auto add_form = [&](Moves& moves, const fp8::OperandRecipe& recipe, WeightUse use, bool with_scales) {
      moves.add(rows * columns);
      if (with_scales)
        moves.add(travelling_scales(recipe, use, rows, columns).numel() *
                  static_cast<int64_t>(size_of(fp8::scale_dtype(recipe.granularity))));
    };
    add_form(travel.shares_codes ? unit.both : unit.forward, weight.forward, WeightUse::forward,
             travel.forward_scales);
    if (!travel.shares_codes)
      add_form(unit.backward, weight.backward, WeightUse::backward, travel.backward_scales);
  }

  // Blocks are gathered for forward and for backward, the embedding for its forward and, tied, for the head,
  // the head once.
  void shards() {
    const std::vector<Unit> all = units();
    const int64_t micro_batches = shape_.micro_batches,
                  reductions = options_.reduce_every_micro_batch ? micro_batches : 1;
    auto times = [&](int64_t per_micro_batch) {
      return options_.reshard == FsdpOptions::Reshard::never ? std::min<int64_t>(1, per_micro_batch)
                                                             : per_micro_batch * micro_batches;
    };
    for (size_t u = 0; u < all.size(); ++u) {
      const bool is_embedding = u == 0, is_head = u + 1 == all.size();
      const int64_t total = is_head || (is_embedding && !shape_.model.tied_embeddings) ? 1 : 2,
                    backward = is_embedding ? 0 : 1,
                    forward = backward + (!is_embedding && !is_head && recomputes(u - 1));
      over_shards(Collective::all_gather, all[u].compute, times(total), options_.compute);
      over_shards(Collective::all_gather, all[u].once, 1, options_.compute);
      over_shards(Collective::all_gather, all[u].both, times(total), DType::u8);
      over_shards(Collective::all_gather, all[u].forward, times(forward), DType::u8);
      over_shards(Collective::all_gather, all[u].backward, times(backward), DType::u8);
      over_shards(Collective::reduce_scatter, all[u].reductions, reductions, options_.reduce);
      over_shards(Collective::all_to_all, all[u].exchanges, reductions, DType::u8);
    }
  }

  int replica() const { return at_.shard_size * at_.tp_size; }
  int rank_in_replica() const { return at_.shard_rank * at_.tp_size + at_.tp_rank; }

  void amaxes() {
    const auto& weights = options_.float8.specs;
    bool per_tensor = false, delayed = false;
    int64_t columns = 0;
    for (const Float8WeightSpec& weight : weights) {
      per_tensor |= weight.forward.granularity == Granularity::tensor ||
                    weight.backward.granularity == Granularity::tensor;
      delayed |= weight.is_delayed;
      if (weight.gathers_codes && at_.shard_size > 1 && weight.backward.granularity == Granularity::row)
        columns += slice(spec(weight.parameter))[1];
    }
    const auto count = static_cast<int64_t>(weights.size());
    if (per_tensor && replica() > 1) all_reduce("replica", count, DType::u32, replica(), rank_in_replica());
    if (columns > 0) all_reduce("dp_shard", columns, DType::u32, at_.shard_size, at_.shard_rank);
    if (count > 0 && replicas_ > 1) all_reduce("dp_replicate", 2, DType::u32, replicas_, at_.replica_rank);
    if (const int world = replicas_ * replica(); delayed && world > 1)  // of every x and dy
      all_reduce("world", 2 * count, DType::u32, world, at_.replica_rank * replica() + rank_in_replica());
  }

  void gradients_and_norm() {
    for (const ParameterSpec& s : specs_) {
      const int64_t columns = slice(s).rank() == 2 ? slice(s)[1] : 1;
      const int64_t held =
          shard_rows(slice(s)[0], at_.shard_rank, at_.shard_size, s.shard_alignment).size() * columns;
      if (held == 0) continue;
      if (s.tensor_parallel == TensorParallel::replicate && at_.tp_size > 1)
        all_reduce("tp", held, DType::f32, at_.tp_size, at_.tp_rank);
      for (const ShardRun& run : shard_runs(s, at_)) {
        const auto groups = static_cast<int>(s.parts[static_cast<size_t>(run.part)].groups);
        if (s.tensor_parallel != TensorParallel::rows || groups >= at_.tp_size) continue;
        const int sharers = at_.tp_size / groups;
        all_reduce("kv_heads", (run.row_end - run.row_begin) * columns, DType::f32, sharers,
                   at_.tp_rank % sharers);
      }
      if (replicas_ > 1) all_reduce("dp_replicate", held, options_.reduce, replicas_, at_.replica_rank);
    }
    if (replica() > 1) all_reduce("replica", 1, DType::f64, replica(), rank_in_replica());
  }

  // --- activations ---------------------------------------------------------------------------------

  void move(Collective collective, int64_t times, int64_t bytes) {
    const int64_t all = shape_.micro_batches * times;
    add("tp", collective, all, all * (bytes / at_.tp_size * (at_.tp_size - 1)));
  }
  void gather(int64_t bytes) { move(Collective::all_gather, 1, bytes); }
  void all_reduce_rows(int64_t count) {
    for (int64_t m = 0; m < shape_.micro_batches; ++m)
      all_reduce("tp", count, DType::f32, at_.tp_size, at_.tp_rank);
  }

  int64_t codes() const { return tokens_ * shape_.model.dim; }
  int64_t whole() const { return codes() * element_; }

  /// The products of a layer: one, or one for each part where the policy splits it. Null: no FP8.
  std::vector<const fp8::GemmDecision*> products_of(const ParameterSpec& s) const {
    const fp8::Policy& policy = shape_.float8_policy;
    auto in_float8 = [](const fp8::GemmDecision* d) { return d && d->recipe ? d : nullptr; };
    if (policy.decisions.empty() || policy.find(s.name)) return {in_float8(policy.find(s.name))};
    std::vector<const fp8::GemmDecision*> products;
    for (const ParameterPart& part : s.parts)
      products.push_back(in_float8(policy.find(s.name.substr(0, s.name.rfind('.') + 1) + part.name)));
    return products;
  }
  bool gathers_codes() const { return gathers_activation_codes(shape_.float8); }
  static Granularity granularity_of(const fp8::GemmDecision& d) { return d.recipe->forward.a.granularity; }
  static bool keeps_codes(const fp8::GemmDecision* d) {
    return d && d->recipe->weight_gradient.is_fp8 && granularity_of(*d) == Granularity::tensor;
  }

  enum class Amax { measured, known };
  void gather_input(const std::vector<const fp8::GemmDecision*>& products, Amax amax) {
    const bool is_float8 = gathers_codes() && products.size() == 1 && products[0];
    if (!is_float8 || granularity_of(*products[0]) == Granularity::block_1x32) return gather(whole());
    const Granularity granularity = granularity_of(*products[0]);
    if (granularity == Granularity::tensor && amax == Amax::measured) all_reduce_rows(1);
    gather(codes());
    if (granularity != Granularity::tensor)
      gather(fp8::scale_shape(granularity, tokens_, shape_.model.dim).numel() * 4);
  }

  void column_layer(const ParameterSpec& s, bool is_recomputed) {
    const std::vector<const fp8::GemmDecision*> products = products_of(s);
    gather_input(products, Amax::measured);
    if (is_recomputed) gather_input(products, Amax::known);
    for (const fp8::GemmDecision* product : products) {
      if (keeps_codes(product)) gather(codes());
    }
    if (!std::all_of(products.begin(), products.end(), keeps_codes)) gather(whole());
  }
  void row_layer(const ParameterSpec& s) {
    const bool in_codes = gathers_codes() && keeps_codes(products_of(s)[0]);
    if (in_codes) all_reduce_rows(1);
    gather(in_codes ? codes() : whole());
  }

  void activations() {
    int64_t recomputed = 0;
    for (size_t i = 0; i < table_.blocks.size(); ++i) {
      const LlamaBlockParameters& block = table_.blocks[i];
      for (int p : {block.wqkv, block.w13}) column_layer(spec(p), recomputes(i));
      for (int p : {block.wo, block.w2}) row_layer(spec(p));
      recomputed += recomputes(i);
    }
    move(Collective::all_gather, 2, whole());
    move(Collective::reduce_scatter, 4 * shape_.model.layers + recomputed + 2, whole());
    const fp8::GemmDecision* output = shape_.float8_policy.find("output");
    const int64_t columns = output && output->padded_rows > 0 ? output->padded_rows : shape_.model.vocab_size;
    for (int64_t begin = 0; begin < tokens_; begin += shape_.model_options.loss_chunk_rows) {
      const int64_t rows = std::min(tokens_ - begin, shape_.model_options.loss_chunk_rows);
      if (!shape_.model_options.loss_parallel) {
        gather(rows * columns * 4);
        continue;
      }
      for (int i = 0; i < 3; ++i) all_reduce_rows(rows);
    }
  }

  /// Elements of a matrix that a rank of the replica holds; with `once`, of ranks that hold the same only one
  /// counts.
  int64_t held(const MuonMatrix& m, int rank, bool once) const {
    ShardCoordinates at = at_;
    at.shard_rank = rank / at.tp_size;
    at.tp_rank = rank % at.tp_size;
    int64_t elements = 0;
    for (const ShardRun& run : shard_runs(spec(m.parameter), at)) {
      if (run.part == m.part && (run.is_owner || !once))
        elements += (run.row_end - run.row_begin) * (run.column_end - run.column_begin);
    }
    return elements;
  }
  void muon() {
    const int ranks = at_.shard_size * at_.tp_size, me = at_.shard_rank * at_.tp_size + at_.tp_rank;
    for (const MuonBucket& bucket : muon_buckets(specs_, at_)) {
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == me) continue;
        int64_t to_owner = 0, from_holder = 0, to_holder = 0, from_owner = 0;
        for (const MuonMatrix& m : bucket) {
          if (m.owner == peer) to_owner += held(m, me, true), from_owner += held(m, me, false);
          if (m.owner == me) from_holder += held(m, peer, true), to_holder += held(m, peer, false);
        }
        for (int64_t sent : {to_owner, to_holder}) {
          if (sent == 0) continue;
          SentTotal& total = out_[{"replica", "send"}];
          ++total.calls, total.bytes += sent * static_cast<int64_t>(size_of(shape_.muon.precision));
        }
        for (int64_t received : {from_holder, from_owner}) {
          if (received > 0) ++out_[{"replica", "recv"}].calls;
        }
      }
    }
  }

  void keys_and_values() {
    const int64_t kv_heads = std::max<int64_t>(shape_.model.kv_heads / at_.tp_size, 1),
                  groups = kv_heads % 4 == 0   ? 4
                           : kv_heads % 3 == 0 ? 3
                           : kv_heads % 2 == 0 ? 2
                                               : 1,
                  elements = 2 * tokens_ * kv_heads * shape_.model.head_dim * (cp_ - 1);
    int64_t layers = shape_.model.layers, forwards = layers;
    for (size_t i = 0; i < table_.blocks.size(); ++i) forwards += recompute_of(i) == Recompute::block;
    const auto move = [&](Collective collective, int64_t times, int64_t bytes) {
      const int64_t all = shape_.micro_batches * times;
      add("cp", collective, all * groups, all * bytes);
    };
    move(Collective::all_gather, forwards + layers, elements * element_);
    move(Collective::reduce_scatter, layers, elements * 4);
  }

  const TrainingShape& shape_;
  const FsdpOptions& options_;
  LlamaParameters table_;
  std::vector<ParameterSpec> specs_;
  ShardCoordinates at_;
  int replicas_, cp_;
  int64_t tokens_, element_;
  SentTotals out_;
};

}  // namespace

SentTotals sent_totals(const CommStats& stats) {
  SentTotals out;
  for (const CommStats::Total& t : stats.totals()) {
    SentTotal& total = out[{t.axis, std::string(name_of(t.collective))}];
    total.calls += t.calls, total.bytes += t.sent_bytes;
  }
  return out;
}

SentTotals traffic_by_formula(const TrainingShape& shape, const Layout& layout, int rank) {
  return Formula(shape, layout, rank).totals();
}

void require_traffic_of_formula(const TrainingShape& whole, const Layout& layout, const LayoutCurve& curve) {
  const TrainingShape shape = shape_on(whole, layout);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    INFO("rank " << rank);
    const SentTotals formula = traffic_by_formula(shape, layout, rank);
    REQUIRE(sent_totals(curve.measured[static_cast<size_t>(rank)]) == formula);
    REQUIRE(sent_totals(curve.planned[static_cast<size_t>(rank)]) == formula);
  }
}

}  // namespace ottava::test
