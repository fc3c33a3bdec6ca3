#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/sharding/float8_exchange.h"
#include "parallel/sharding/float8_weights.h"
#include "parallel/sharding/parameter_spec.h"
#include "parallel/sharding/rank_groups.h"
#include "parallel/sharding/reshard.h"
#include "parallel/sharding/shard_packing.h"

namespace ottava {

/// A rank's part of one parameter: rows of its tensor-parallel slice.
struct ParameterShard {
  Shape slice;      ///< tensor-parallel slice, before FSDP
  RowRange rows;    ///< rows of the slice that are this rank's; what follows is [rows.size(), columns]
  Tensor master;    ///< f32
  Tensor compute;   ///< working copy in the compute type; the master itself where nothing needs a second one
  Tensor gradient;  ///< f32, summed over everything that trained on this step
  PerMoment<Tensor> moments;  ///< those of other update rules are absent
  bool has_compute_copy = false;
  bool is_held = true;  ///< false: another pipeline stage's, of which nothing is here
};

struct FsdpOptions {
  using Reshard = ottava::Reshard;
  DType compute = DType::bf16;
  DType reduce = DType::f32;  ///< of gradient sums between shards and replicas; of tensor-parallel ranks f32
  DType optimizer_state = DType::f32;
  Reshard reshard = Reshard::automatic;
  int prefetch = 1;  ///< units gathered ahead of their turn
  /// Smaller parameters of a unit travel together: a collective's latency costs more than a copy.
  int64_t packs_below_bytes = 64 * 1024;
  bool reduce_every_micro_batch = true;  ///< false: whole gradients stay until the last micro-batch
  /// The last reduction of a micro-batch may run beside the forward of the next one, and ends when that one's
  /// first reduction begins; its memory lives as long. Not allowed where micro-batches are graphs of their
  /// own, and useful only where weights stay whole: otherwise the next forward begins with gathers, which
  /// queue behind it.
  bool reductions_cross = false;
  bool trains = true;             ///< false: no gradients and no optimizer state (generation)
  Float8Weights::Options float8;  ///< weights that products read in FP8
  bool float8_gradients = false;  ///< between shards (float8_exchange.h); only with float8
  /// FP8 codes of weights that are gathered in the compute type stay from their first use to the end of the
  /// step, and those weights are not gathered a second time. Not with Reshard::never, where they stay anyway.
  bool keeps_float8_codes = false;
};

/// Sets shard_alignment in the table as the options need it: shards of whole blocks where block scales
/// travel.
void align_shards(std::vector<ParameterSpec>& specs, const FsdpOptions& options);
/// For each parameter, whether nothing reads its compute type, because FP8 codes take its place.
std::vector<bool> replaced_by_float8(const std::vector<ParameterSpec>& specs, const FsdpOptions& options,
                                     const ShardCoordinates& at);

/// For each parameter, the entries of `float8` whose codes, once kept, are all that is read of it; none where
/// something also reads the compute type, or where codes are gathered.
std::vector<std::vector<size_t>> kept_instead_of_weights(const std::vector<ParameterSpec>& specs,
                                                         const Float8Weights::Options& float8,
                                                         const ShardCoordinates& at);

/// Fully sharded data parallel (ZeRO-3, arXiv:1910.02054; PyTorch FSDP, arXiv:2304.11277): where parameters
/// live, and when they are whole. Each unit is gathered before its turn and let go after it. Its gradients
/// are reduce-scattered when its backward is done, and all-reduced over replicas with the step's last
/// micro-batch, after the sums over tensor-parallel ranks. Sums between ranks are f32 unless asked otherwise;
/// sums over micro-batches are always f32. With one rank every call is free.
///
/// Traffic of a step in a group of S shards: each gather of a unit moves (S-1)/S of its bytes in the compute
/// type (or in FP8, where Float8Weights says so), each reduction (S-1)/S of its bytes in the reduce type,
/// padding included. With keeps_float8_codes a weight that only FP8 products read is gathered once per step,
/// unless it travels packed. Over R replicas, 2 (R-1)/R of the shard's bytes in the reduce type are added.
class Fsdp {
 public:
  /// Takes persistent memory for all shards; those of units that `ranks.coordinates` does not hold are empty.
  /// Every rank makes the same call.
  Fsdp(Stream& stream, Arena& arena, RankGroups& ranks, std::vector<ParameterSpec> specs,
       FsdpOptions options);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const ShardCoordinates& coordinates() const { return ranks_.coordinates; }
  const ParameterShard& shard(int parameter) const { return shards_[parameter]; }

  /// Writes the initial masters (initialise_shard.h), moments of zero, and working copies.
  void initialise(uint64_t seed);
  /// Sets all moments to zero.
  void clear_moments();
  /// Makes working copies from the masters, after masters were loaded.
  void refresh_compute_copies();

  // --- a step ------------------------------------------------------------------------------------
  /// Forgets the gradients of the step before, and makes the FP8 codes of weights that have changed.
  void begin_step();
  /// `is_last`: of the step. Only then are gradients summed over replicas and, unless
  /// options().reduce_every_micro_batch, over shards.
  void begin_micro_batch(bool is_last);
  /// Validation and generation: nothing is kept for backward.
  void begin_forward_only();
  /// Starts gathering options().prefetch of the units that follow `after` on the way to `last`, in either
  /// direction. Each is gathered for its entry of `uses`, or for forward if none are given.
  void prefetch(int after, int last, std::span<const WeightUse> uses = {});
  /// Starts gathering all units of this rank, each for its entry of `uses`.
  void gather_all(std::span<const WeightUse> uses);
  /// unshard() waits for a unit to be whole, after starting its gather if that was not done; reshard() lets
  /// go of it.
  void unshard(int unit, WeightUse use = WeightUse::forward);
  void reshard(int unit);
  /// A parameter's slice in the compute type. Its unit must be unsharded.
  Tensor weight(int parameter) const;
  /// Operand b of an FP8 product: `entry` of options().float8.specs. Its unit must be unsharded for this use.
  fp8::Float8Tensor float8_weight(size_t entry, WeightUse use);
  /// Null without FP8.
  Float8Weights* float8() const { return float8_.get(); }

  /// Where a product puts a parameter's gradient. It overwrites the first time and accumulates after that.
  struct Gradient {
    Tensor tensor;
    bool accumulate;
  };
  Gradient gradient(int parameter);
  /// The same for operations that can only add.
  Tensor zeroed_gradient(int parameter);
  /// Starts summing a unit's gradients over ranks; its backward must be done.
  void reduce_gradients(int unit);
  /// Leaves nothing in flight, unless options().reductions_cross, so that the next micro-batch may be a CUDA
  /// graph of its own.
  void finish_micro_batch() {
    if (!options_.reductions_cross) complete_reduction();
  }
  /// Waits until every gradient shard is complete; those that nothing touched are zero.
  void finish_gradients();

  // --- the optimizer -----------------------------------------------------------------------------
  /// Views of the gradient shards that this rank counts for the global norm; every element is counted on
  /// exactly one rank of a replica.
  std::vector<Tensor> counted_gradients() const;
  /// Sums sum_of_squares, f64 [1], over the ranks of a replica, in place.
  void all_reduce_norm(const Tensor& sum_of_squares);
  /// Says that the optimizer or a load has changed the shards, so that whole copies are stale.
  void weights_changed();

 private:
  /// What of a unit is gathered together: the compute type with codes that serve both uses, and those of
  /// either use.
  enum Portion : unsigned { kBase = 1, kForwardCodes = 2, kBackwardCodes = 4 };
  struct Unit {
    std::vector<int> parameters;            ///< indices into specs_
    std::vector<int> packed;                ///< those whose gradients share a buffer, in the packing's order
    std::unique_ptr<ShardPacking> packing;  ///< null without packed ones
    std::vector<int> packed_weights;        ///< and those whose weights do: not those gathered in FP8
    std::unique_ptr<ShardPacking> weight_packing;
    Tensor pack;                 ///< this rank's segment of working copies
    std::vector<size_t> float8;  ///< entries of float8_ that gather codes
    Allocation gathered_pack;
    std::vector<Request> gathers;
    unsigned portions = kBase;          ///< that this unit has
    unsigned gathering = 0, whole = 0;  ///< portions
  };
  struct Whole {
    Allocation weight, gradient;  ///< [slice]; only with shards
  };
  /// One gradient's part of a reduction: what is reduced, and where its sum arrives when not in the shard.
  struct Sum {
    int parameter;
    Allocation source, sum;
  };
  /// A unit's reduction in flight: the memory it reads, and where sums arrive that must still be added to a
  /// shard.
  struct Reduction {
    int unit = -1;
    bool is_last = false;  ///< of the step: it may end when the next micro-batch has begun
    Request request;
    std::vector<Sum> sums;
    std::vector<std::pair<int, Float8Exchange>> exchanges;
    Allocation pack, pack_sum;
  };

  bool is_sharded() const { return ranks_.dp_shard->size() > 1; }
  /// Everything that reads it has codes.
  bool is_needless(int parameter) const;
  void place_float8(Arena& arena);
  void place_unit(Arena& arena, Unit& unit, int index);
  void place_shard(Arena& arena, int parameter, const Unit& unit);
  void find_shared_heads();
  void start_gather(int unit, WeightUse use);
  void gather_base(Unit& unit);
  void release_whole(int unit);
  /// Whether shards exchange this parameter's gradient as FP8.
  bool exchanges_gradient(int parameter) const;
  void scatter_gradients(int unit);
  Allocation in_reduce_type(const Tensor& gradient, const std::string& name);
  void complete_reduction();
  void take_sum(int parameter, const Tensor& sum);
  void sum_over_copies(int unit);
  void sum_over_replicas(int unit);
  void finish_copy_sums();

  Stream& stream_;
  Arena& arena_;
  RankGroups& ranks_;
  std::vector<ParameterSpec> specs_;
  FsdpOptions options_;
  std::vector<ParameterShard> shards_;
  std::unique_ptr<Float8Weights> float8_;
  std::vector<bool> replaced_;             ///< by FP8 codes, by parameter
  std::vector<std::vector<size_t>> kept_;  ///< entries of float8_ whose codes stay, by parameter
  std::vector<Unit> units_;
  std::vector<Whole> whole_;
  std::vector<bool> summed_;  ///< the gradient shard holds something of this step
  /// tensor-parallel ranks that hold the same key/value heads; null where none do
  Communicator* head_sharers_ = nullptr;
  Reduction pending_;
  std::vector<Request> copy_sums_;                        ///< all-reduces of finished shards
  std::vector<std::pair<int, Allocation>> replica_sums_;  ///< those not made in f32, by parameter
  bool is_last_micro_batch_ = true, is_forward_only_ = false;
};

}  // namespace ottava
