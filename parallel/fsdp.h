#pragma once

#include <vector>

#include "core/memory/arena.h"
#include "core/stream.h"
#include "parallel/parameter_spec.h"

namespace ottava {

/// A rank's part of one parameter. All shards are [rows.size(), columns] of the tensor-parallel slice.
struct ParameterShard {
  Shape slice;    ///< tensor-parallel slice, before FSDP
  RowRange rows;  ///< rows of the slice that are this rank's
  Tensor master;  ///< f32
  Tensor compute;  ///< working copy in the compute type; the master itself when that is f32
  Tensor gradient;  ///< f32, summed over everything that trained on this step
  Tensor exp_avg, exp_avg_sq;  ///< AdamW moments, f32 or bf16
};

struct FsdpOptions {
  DType compute = DType::bf16;
  DType optimizer_state = DType::f32;
  bool trains = true;  ///< false: no gradients and no optimizer state (generation)
};

/// The parameters of a rank: where they live, and when their working copies are whole.
class Fsdp {
 public:
  /// Takes persistent memory for all shards.
  Fsdp(Stream& stream, Arena& arena, std::vector<ParameterSpec> specs, ShardCoordinates at, FsdpOptions options);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const ShardCoordinates& coordinates() const { return at_; }
  const ParameterShard& shard(int parameter) const { return shards_[static_cast<size_t>(parameter)]; }
  const FsdpOptions& options() const { return options_; }

  /// Writes the initial masters (parameter_spec.h) and working copies. Host memory; not on `meta`.
  void initialise(uint64_t seed);
  /// Working copies from the masters, after masters were loaded.
  void refresh_compute_copies();

  /// Starts a step: gradients are zero again.
  void begin_step();
  /// Starts gathering a unit's parameters; unshard waits for it; reshard lets go of it.
  void prefetch(int unit);
  void unshard(int unit);
  void reshard(int unit);
  /// The slice in the compute type. Its unit must be unsharded.
  Tensor weight(int parameter) const;

  /// Where a product accumulates a parameter's FP32 gradient: overwrite it the first time in a step, add after that.
  struct Gradient {
    Tensor tensor;
    bool accumulate;
  };
  Gradient gradient(int parameter);
  /// The same for operations that can only add.
  Tensor zeroed_gradient(int parameter);
  /// Called when a unit's backward is done: its gradients are summed over ranks and sharded.
  void reduce_gradients(int unit);
  /// Waits until every gradient shard is complete; shards that nothing touched are zero.
  void finish_gradients();

 private:
  Stream& stream_;
  std::vector<ParameterSpec> specs_;
  ShardCoordinates at_;
  FsdpOptions options_;
  std::vector<ParameterShard> shards_;
  std::vector<bool> touched_;  ///< gradient written this step
};

}  // namespace ottava
