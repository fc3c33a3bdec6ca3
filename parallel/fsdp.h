#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "core/stream.h"
#include "parallel/communicator.h"
#include "parallel/parameter_spec.h"
#include "parallel/rank_groups.h"
#include "parallel/shard_packing.h"

namespace ottava {

/// A rank's part of one parameter: rows of its tensor-parallel slice.
struct ParameterShard {
  Shape slice;      ///< tensor-parallel slice, before FSDP
  RowRange rows;    ///< rows of the slice that are this rank's; what follows is [rows.size(), columns]
  Tensor master;    ///< f32
  Tensor compute;   ///< working copy in the compute type; the master itself where nothing needs a second one
  Tensor gradient;  ///< f32, summed over everything that trained on this step
  Tensor exp_avg, exp_avg_sq;  ///< AdamW moments, f32 or bf16
  bool has_compute_copy = false;
};

struct FsdpOptions {
  enum class Reshard {
    automatic,  ///< the last unit stays whole from forward to backward, where it is needed at once
    always,
    never,      ///< units stay whole from forward to the optimizer step (ZeRO-2)
  };
  DType compute = DType::bf16;
  DType reduce = DType::f32;           ///< of gradient sums between ranks
  DType optimizer_state = DType::f32;
  Reshard reshard = Reshard::automatic;
  int prefetch = 1;  ///< units gathered ahead of their turn
  bool reduce_every_micro_batch = true;  ///< false: whole gradients stay until the last micro-batch
  bool trains = true;                    ///< false: no gradients and no optimizer state (generation)
};

/// Fully sharded data parallel (ZeRO-3, arXiv:1910.02054; PyTorch FSDP, arXiv:2304.11277): where parameters live, and when
/// they are whole. Each unit is gathered before its turn and let go after it; its gradients are reduce-scattered when its
/// backward is done, and all-reduced over replicas with the step's last micro-batch. Sums between ranks are f32 unless
/// asked otherwise. With one rank every call is free.
///
/// Traffic of a step and rank group of S shards: each gather of a unit moves (S-1)/S of its bytes in the compute type, each
/// reduction (S-1)/S of its bytes in the reduce type, padding of packed parameters included (traffic.h).
class Fsdp {
 public:
  /// Takes persistent memory for all shards. Every rank makes the same call.
  Fsdp(Stream& stream, Arena& arena, RankGroups& ranks, std::vector<ParameterSpec> specs, FsdpOptions options);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const ShardCoordinates& coordinates() const { return ranks_.coordinates; }
  const ParameterShard& shard(int parameter) const { return shards_[static_cast<size_t>(parameter)]; }
  const FsdpOptions& options() const { return options_; }

  /// Writes the initial masters (parameter_spec.h), zero moments and working copies.
  void initialise(uint64_t seed);
  /// Working copies from the masters, after masters were loaded.
  void refresh_compute_copies();

  // --- a step -------------------------------------------------------------------------------------------------------
  void begin_step();
  void begin_micro_batch(bool is_last);
  /// Validation and generation: nothing is kept for backward.
  void begin_forward_only();
  /// Starts gathering the units that follow `after` on the way to `last`, in either direction: options().prefetch of them.
  void prefetch(int after, int last);
  /// Waits for a unit (and starts it if nobody did); reshard lets go of it.
  void unshard(int unit);
  void reshard(int unit);
  /// The slice in the compute type. Its unit must be unsharded.
  Tensor weight(int parameter) const;

  /// Where a product puts a parameter's gradient: overwrite it the first time, add after that.
  struct Gradient {
    Tensor tensor;
    bool accumulate;
  };
  Gradient gradient(int parameter);
  /// The same for operations that can only add.
  Tensor zeroed_gradient(int parameter);
  /// A unit's backward is done: starts summing its gradients over ranks.
  void reduce_gradients(int unit);
  /// Leaves nothing in flight: after it the next micro-batch may begin on other terms (a CUDA graph of its own).
  void finish_micro_batch() { complete_reduction(); }
  /// Waits until every gradient shard is complete; those that nothing touched are zero.
  void finish_gradients();

  // --- the optimizer ------------------------------------------------------------------------------------------------
  /// Views of the gradient shards that this rank counts for the global norm: every element on exactly one rank of a replica.
  std::vector<Tensor> counted_gradients() const;
  /// f64 [1], over the ranks of a replica.
  void all_reduce_norm(const Tensor& sum_of_squares);
  /// Whole copies are stale: the optimizer or a load changed the shards.
  void weights_changed();

 private:
  struct Unit {
    std::vector<int> parameters;            ///< indices into specs_
    std::vector<int> packed;                ///< those of them that share a buffer, in the packing's order
    std::unique_ptr<ShardPacking> packing;  ///< null without packed ones
    Tensor pack;                            ///< this rank's segment of working copies
    Allocation gathered_pack;
    Request gather;
    bool is_gathering = false, is_whole = false;
  };
  struct Whole {
    Allocation weight, gradient;  ///< [slice]; only with shards
  };
  /// A unit's reduction in flight: the memory it reads, and where sums arrive that must still be added to a shard.
  struct Reduction {
    int unit = -1;
    bool is_last = false;  ///< of the step: it may end when the next micro-batch has begun
    Request request;
    std::vector<Allocation> sources;
    std::vector<std::pair<int, Allocation>> sums;
    Allocation pack_sum;
  };

  bool is_sharded() const { return ranks_.dp_shard->size() > 1; }
  Unit& unit_at(int unit) { return units_[static_cast<size_t>(unit)]; }
  Whole& whole_at(int parameter) { return whole_[static_cast<size_t>(parameter)]; }
  void place_unit(Arena& arena, Unit& unit, int index);
  void place_shard(Arena& arena, int parameter, const Unit& unit);
  void find_shared_heads();
  void start_gather(int unit);
  void release_whole(int unit);
  void scatter_gradients(int unit);
  Allocation in_reduce_type(const Allocation& gradient, const std::string& name);
  void complete_reduction();
  void take_sum(int parameter, const Tensor& sum);
  void sum_over_copies(int unit);

  Stream& stream_;
  Arena& arena_;
  RankGroups& ranks_;
  std::vector<ParameterSpec> specs_;
  FsdpOptions options_;
  std::vector<ParameterShard> shards_;
  std::vector<Unit> units_;
  std::vector<Whole> whole_;
  std::vector<bool> summed_;                   ///< the gradient shard holds something of this step
  std::unique_ptr<Communicator> head_sharers_;  ///< tensor-parallel ranks that hold the same key/value heads
  Reduction pending_;
  std::vector<Request> copy_sums_;             ///< all-reduces of finished shards
  bool is_last_micro_batch_ = true, is_forward_only_ = false;
};

}  // namespace ottava
