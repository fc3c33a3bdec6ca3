#pragma once

#include <map>
#include <memory>

#include "core/io/attempts.h"
#include "parallel/comm/communicator.h"
#include "parallel/sharding/context_parallel.h"
#include "parallel/sharding/mesh.h"
#include "parallel/sharding/tensor_parallel.h"

namespace ottava {

/// The communicators of one rank, one per use. An axis of size 1 has a communicator of one rank.
struct RankGroups {
  /// all ranks; moves host memory: decisions and scalars of the host
  std::unique_ptr<Communicator> control;
  /// ranks that see different tokens: dp_replicate x dp_shard x cp; moves host memory
  std::unique_ptr<Communicator> control_loss;
  /// all ranks; like all that follow unless they say otherwise, moves tensors of the training device
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> pp;            ///< ranks that hold the stages of one pipeline, in order
  std::unique_ptr<Communicator> dp_replicate;  ///< ranks that hold the same pieces (HSDP, DDP)
  /// ranks that hold the pieces of a parameter (FSDP): dp_shard x cp
  std::unique_ptr<Communicator> dp_shard;
  std::unique_ptr<Communicator> cp;  ///< ranks that see parts of the same sequences
  std::unique_ptr<Communicator> tp;  ///< ranks that share each matrix product
  /// ranks that hold one replica of a pipeline stage's parameters: dp_shard x cp x tp; without stages
  /// `replica` itself
  std::shared_ptr<Communicator> stage;
  /// ranks that hold one replica of all parameters: pp x dp_shard x cp x tp
  std::shared_ptr<Communicator> replica;
  std::unique_ptr<Communicator> control_cp;  ///< the ranks of `cp`; moves host memory
  TensorParallelGroup tensor_parallel;
  ContextParallelGroup context_parallel;
  ShardCoordinates coordinates;
  /// position in dp_replicate x dp_shard: which sequences of the global batch are read
  int data_rank = 0, data_size = 1;
  /// paths of checkpoints that rank 0 has waited for in vain; empty on the others
  GivenUp unreadable;

  /// Splits the world's communicators along the mesh. Every rank makes the same call.
  RankGroups(std::unique_ptr<Communicator> control, std::unique_ptr<Communicator> world, const Mesh& mesh);
  RankGroups(RankGroups&&) = default;
  /// The `count` neighbours in `tp` that hold the same key and value heads; `count` divides the size of `tp`.
  /// The first request for a count makes the communicator, so all ranks make it; it is kept as long as these
  /// groups, since what NCCL takes for it must be there before anyone asks what is free for a step.
  Communicator& head_sharers(int count);
  /// True for rank 0 of the world.
  bool is_first() const { return world->rank() == 0; }

 private:
  std::map<int, std::unique_ptr<Communicator>> head_sharers_;  ///< by count
};

/// The groups of a single process.
RankGroups solo_rank_groups();

}  // namespace ottava
