#include "parallel/sharding/muon_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/ops/elementwise.h"
#include "parallel/comm/all_ranks.h"

namespace ottava {
namespace {

float scale_of(const MuonMatrix& matrix, MuonOptions::Adjust adjust) {
  const double rows = matrix.rows, columns = matrix.columns;
  return static_cast<float>(adjust == MuonOptions::Adjust::original
                                ? std::sqrt(std::max(1.0, rows / columns))
                                : 0.2 * std::sqrt(std::max(rows, columns)));
}

}  // namespace

MuonUpdate::MuonUpdate(Stream& stream, Arena& arena, Communicator& holders, Fsdp& parameters,
                       MuonOptions options)
    : stream_(stream),
      arena_(arena),
      holders_(holders),
      parameters_(parameters),
      options_(options),
      buckets_(muon_buckets(parameters.specs(), parameters.coordinates())) {
  const ShardCoordinates& at = parameters.coordinates();
  if (holders.size() != at.shard_size * at.tp_size ||
      holders.rank() != at.shard_rank * at.tp_size + at.tp_rank) {
    fail<ConfigError>("muon", "rank {} of {} is not shard {} of {} x tensor parallel {} of {}",
                      holders.rank(), holders.size(), at.shard_rank, at.shard_size, at.tp_rank, at.tp_size);
  }
  for (const MuonBucket& bucket : buckets_) plans_.push_back(plan_of(bucket));
  if (!buckets_.empty()) holders_.connect_pairs(all_ranks(holders_.size()));
}

// Both ends of a message list its pieces in the order of the bucket.
MuonUpdate::Plan MuonUpdate::plan_of(const MuonBucket& bucket) const {
  const ShardCoordinates& here = parameters_.coordinates();
  std::vector<Piece> held, owned;
  for (size_t i = 0; i < bucket.size(); ++i) {
    const MuonMatrix& matrix = bucket[i];
    const ParameterSpec& spec = parameters_.specs()[matrix.parameter];
    auto add_run = [&](std::vector<Piece>& pieces, const ShardCoordinates& at, int rank) {
      for (const ShardRun& run : shard_runs(spec, at)) {
        if (run.part == matrix.part) pieces.push_back({i, rank, run});
      }
    };
    add_run(held, here, matrix.owner);
    if (matrix.owner != holders_.rank()) continue;
    ShardCoordinates at = here;
    for (int rank = 0; rank < holders_.size(); ++rank) {
      at.shard_rank = rank / at.tp_size;
      at.tp_rank = rank % at.tp_size;
      add_run(owned, at, rank);
    }
  }
  auto only_owners = [](std::vector<Piece> pieces) {  // one of those that hold the same rows sends them
    std::erase_if(pieces, [](const Piece& piece) { return !piece.run.is_owner; });
    return pieces;
  };
  return {.to_owners = {.out = packed(only_owners(held), End::sender),
                        .in = packed(only_owners(owned), End::receiver)},
          .to_holders = {.out = packed(owned, End::sender), .in = packed(held, End::receiver)}};
}

MuonUpdate::Pieces MuonUpdate::packed(std::vector<Piece> pieces, End end) const {
  std::ranges::stable_sort(pieces, {}, &Piece::rank);
  Pieces out;
  out.begin.assign(holders_.size() + 1, 0);
  std::vector<int64_t> elements(holders_.size(), 0);
  for (Piece& piece : pieces) {
    int64_t& block = elements[piece.rank];
    piece.at = block;
    block += piece.shape().numel();
  }
  for (size_t r = 0; r < elements.size(); ++r) {
    const bool is_own = static_cast<int>(r) == holders_.rank();
    out.begin[r + 1] = out.begin[r] + (end == End::receiver && is_own ? 0 : elements[r]);
  }
  out.list = std::move(pieces);
  return out;
}

MuonUpdate::Flight MuonUpdate::allocate(const Travel& travel, const std::string& name) const {
  auto buffer = [&](const char* what, int64_t elements) {
    return elements == 0
               ? Allocation{}
               : arena_.allocate(name + what, options_.precision, {elements}, MemoryCategory::scratch);
  };
  return {.out = buffer(".out", travel.out.begin.back()), .in = buffer(".in", travel.in.begin.back())};
}

void MuonUpdate::send(Flight& flight, const Travel& travel, const std::string& label) const {
  Group group(holders_);
  for (int rank = 0; rank < holders_.size(); ++rank) {
    const size_t r = rank;
    if (rank == holders_.rank()) continue;
    if (travel.in.begin[r] < travel.in.begin[r + 1])
      holders_.recv(stream_, {.tensor = flight.in.tensor().slice(travel.in.begin[r], travel.in.begin[r + 1]),
                              .from = rank,
                              .label = label});
    if (travel.out.begin[r] < travel.out.begin[r + 1])
      holders_.send(stream_,
                    {.tensor = flight.out.tensor().slice(travel.out.begin[r], travel.out.begin[r + 1]),
                     .to = rank,
                     .label = label});
  }
  flight.request = group.end();
}

Tensor MuonUpdate::sent(const Travel& travel, const Flight& flight, const Piece& piece) const {
  return travel.out.of(flight.out, piece);
}

Tensor MuonUpdate::received(const Travel& travel, const Flight& flight, const Piece& piece) const {
  if (piece.rank == holders_.rank()) return sent(travel, flight, piece);
  return travel.in.of(flight.in, piece);
}

MuonUpdate::Flight MuonUpdate::start(size_t index, const Tensor& scalars) const {
  const Plan& plan = plans_[index];
  Flight flight = allocate(plan.to_owners, fmt::format("muon {} to owners", index));
  std::vector<MuonMomentum> tensors;
  auto add = [&](const Piece& piece, const Tensor& update) {
    const ParameterShard& s = parameters_.shard(buckets_[index][piece.matrix].parameter);
    tensors.push_back({piece.run.of(s.gradient), piece.run.of(s.moments[Moment::momentum]), update});
  };
  for (const Piece& piece : plan.to_owners.out.list) add(piece, sent(plan.to_owners, flight, piece));
  if (!tensors.empty()) muon_momentum(stream_, tensors, options_.hyper, scalars);
  // The momentum of rows that another rank sends changes just as on that rank.
  tensors.clear();
  std::vector<Allocation> unsent;
  for (const Piece& piece : plan.to_holders.in.list) {
    if (piece.run.is_owner) continue;
    unsent.push_back(
        arena_.allocate("muon unsent", options_.precision, piece.shape(), MemoryCategory::scratch));
    add(piece, unsent.back());
  }
  if (!tensors.empty()) muon_momentum(stream_, tensors, options_.hyper, scalars);
  unsent.clear();
  send(flight, plan.to_owners, fmt::format("muon {} to owners", index));
  return flight;
}

void MuonUpdate::orthogonalise(const MuonMatrix& matrix, size_t index, const Plan& plan, const Flight& from,
                               const Flight& to) const {
  const Shape shape{matrix.rows, matrix.columns};
  const int64_t k = std::min(matrix.rows, matrix.columns);
  auto scratch = [&](const char* name, DType dtype, Shape s) {
    return arena_.allocate(name, dtype, s, MemoryCategory::scratch);
  };
  const Allocation x = scratch("muon matrix", options_.precision, shape),
                   product = scratch("muon product", DType::f32, shape),
                   gram = scratch("muon gram", options_.precision, {k, k}),
                   gram_squared = scratch("muon gram squared", DType::f32, {k, k}),
                   sums = scratch("muon sums", DType::f64, newton_schulz_sums(shape));
  auto is_whole_rows = [&](const Piece& piece) { return piece.run.columns() == matrix.columns; };
  auto rows_of = [&](const Piece& piece) { return x.tensor().slice(piece.run.row_begin, piece.run.row_end); };
  for (const Piece& piece : plan.to_owners.in.list) {
    if (piece.matrix != index) continue;
    const Tensor values = received(plan.to_owners, from, piece);
    is_whole_rows(piece) ? copy(stream_, values, rows_of(piece))
                         : copy_columns(stream_, values, {}, rows_of(piece), piece.run.column_begin);
  }
  newton_schulz(stream_,
                {.x = x, .gram = gram, .gram_squared = gram_squared, .product = product, .sums = sums},
                options_.hyper);
  for (const Piece& piece : plan.to_holders.out.list) {
    if (piece.matrix != index) continue;
    const Tensor values = sent(plan.to_holders, to, piece);
    is_whole_rows(piece)
        ? copy(stream_, rows_of(piece), values)
        : copy_columns(stream_, rows_of(piece), {piece.run.column_begin, piece.run.column_end}, values, 0);
  }
}

MuonUpdate::Flight MuonUpdate::orthogonalise(size_t index, Flight arrived) const {
  const Plan& plan = plans_[index];
  arrived.request.wait(stream_);
  Flight back = allocate(plan.to_holders, fmt::format("muon {} to holders", index));
  for (size_t i = 0; i < buckets_[index].size(); ++i) {
    if (buckets_[index][i].owner == holders_.rank())
      orthogonalise(buckets_[index][i], i, plan, arrived, back);
  }
  send(back, plan.to_holders, fmt::format("muon {} to holders", index));
  return back;
}

void MuonUpdate::apply(size_t index, Flight arrived, const Tensor& scalars,
                       std::span<const Training> training) const {
  const Plan& plan = plans_[index];
  arrived.request.wait(stream_);
  std::vector<MuonWeight> weights;
  for (const Piece& piece : plan.to_holders.in.list) {
    const MuonMatrix& matrix = buckets_[index][piece.matrix];
    const ParameterShard& s = parameters_.shard(matrix.parameter);
    const Training& t = training[matrix.parameter];
    weights.push_back({.master = piece.run.of(s.master),
                       .update = received(plan.to_holders, arrived, piece),
                       .compute = s.has_compute_copy ? piece.run.of(s.compute) : Tensor{},
                       .amax = t.amax,
                       .weight_decay = t.weight_decay,
                       .lr_factor = t.lr_factor,
                       .scale = scale_of(matrix, options_.adjust)});
  }
  if (!weights.empty()) muon_apply(stream_, weights, scalars);
}

void MuonUpdate::begin(const Tensor& scalars) {
  if (!buckets_.empty()) first_ = start(0, scalars);
}

void MuonUpdate::finish(const Tensor& scalars, std::span<const Training> training) {
  if (buckets_.empty()) return;
  Flight next = std::move(*std::exchange(first_, std::nullopt));
  std::optional<Flight> back;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Flight now = std::move(next);
    if (i + 1 < buckets_.size()) next = start(i + 1, scalars);
    Flight results = orthogonalise(i, std::move(now));
    if (back) apply(i - 1, std::move(*back), scalars, training);
    back = std::move(results);
  }
  apply(buckets_.size() - 1, std::move(*back), scalars, training);
}

}  // namespace ottava
