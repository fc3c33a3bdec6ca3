#pragma once

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/ranks/mesh.h"
#include "parallel/sharding/context_parallel.h"
#include "parallel/sharding/tensor_parallel.h"

namespace ottava {

/// The communicators of one rank, one per use. Axes of size 1 have communicators of one rank.
struct RankGroups {
  /// all ranks, moves host memory: decisions and scalars of the host
  std::unique_ptr<Communicator> control;
  std::unique_ptr<Communicator> control_loss;  ///< those that see different tokens, host memory
  /// all ranks, moves tensors of the training device, as all that follow
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> pp;            ///< hold the stages of one pipeline, in their order
  std::unique_ptr<Communicator> dp_replicate;  ///< hold the same pieces (HSDP, DDP)
  std::unique_ptr<Communicator> dp_shard;      ///< hold the pieces of a parameter (FSDP): dp_shard x cp
  std::unique_ptr<Communicator> cp;            ///< see parts of the same sequences
  std::unique_ptr<Communicator> tp;
  std::unique_ptr<Communicator> loss;  ///< see different tokens: dp_replicate x dp_shard x cp
  /// hold one replica of a pipeline stage's parameters: dp_shard x cp x tp; `replica` itself without stages
  std::shared_ptr<Communicator> stage;
  std::shared_ptr<Communicator> replica;     ///< hold one replica of all parameters: pp x dp_shard x cp x tp
  std::unique_ptr<Communicator> control_cp;  ///< the ranks of `cp`, host memory
  TensorParallelGroup tensor_parallel;
  ContextParallelGroup context_parallel;
  ShardCoordinates coordinates;
  /// position in dp_replicate x dp_shard: which sequences of the global batch are read
  int data_rank = 0, data_size = 1;

  /// Takes the world's communicators apart along the mesh. Every rank makes the same call.
  RankGroups(std::unique_ptr<Communicator> control, std::unique_ptr<Communicator> world, const Mesh& mesh);
  RankGroups(RankGroups&&) = default;
  /// Rank 0 of all.
  bool is_first() const { return world->rank() == 0; }
};

/// A single process.
RankGroups solo_rank_groups();

}  // namespace ottava
