#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/stream.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava::checkpoint {

/// A rank's shard of one tensor: dense [local rows, local columns] as shard_rows and tensor_parallel_shape
/// say. `data` may be null where the shard is empty. `dtype` is the same on all ranks.
struct ShardMemory {
  DType dtype = DType::f32;
  void* data = nullptr;
};

/// What a rank holds of one parameter.
struct HeldShard {
  ShardMemory weight;  ///< FP32 master
  /// Those of the spec's update rule, f32 or bf16; not used where only the model is saved or loaded.
  PerMoment<ShardMemory> moments = {};
};

/// What one rank holds of a training run.
struct TrainedParameters {
  std::span<const ParameterSpec> specs;  ///< the same on all ranks
  ShardCoordinates at;
  std::vector<HeldShard> shards;  ///< one per spec
  /// False: only weights are saved or loaded.
  bool with_optimizer = true;
  /// Copies between shard memory and host memory, needed where shards are not host memory. Blocks until done.
  std::function<void(void* to, const void* from, size_t bytes)> copy = {};
  /// The stream that writes shards on a GPU; null elsewhere.
  Stream* stream = nullptr;
};
/// Bytes that this rank writes: weights and, with_optimizer, moments. Shard memory may be null.
int64_t owned_bytes(const TrainedParameters& parameters);

/// A small file of the checkpoint, given by the caller.
struct TextFile {
  std::string name;  ///< "config.json", "training_state.json", "tokenizer.json"
  std::string content;
};

}  // namespace ottava::checkpoint
