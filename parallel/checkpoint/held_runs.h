#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "core/io/tensor_rectangle.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/layout.h"

namespace ottava::checkpoint {

/// A rectangle of a stored tensor, and the shard memory that holds it densely.
struct HeldRun {
  size_t tensor = 0;  ///< index into Layout::tensors
  TensorRectangle rectangle;
  ShardMemory memory;     ///< at the rectangle's first element
  bool is_owner = false;  ///< this rank writes it: replica 0, lowest of the ranks that hold the same rows
  std::shared_ptr<Event> arrived = {};    ///< when memory will have its values; null: it has them
  std::optional<uint64_t> checksum = {};  ///< of its elements (checksum.h), where a copy of them was made
  bool is_finite = false;                 ///< of weights: a copy was made, and all of them were finite
};

/// Everything that this rank holds of the stored tensors, in order of files and offsets. Throws ConfigError
/// if a shard that should have elements has no memory, or if the number of shards differs from the number of
/// specs.
std::vector<HeldRun> held_runs(const Layout& layout, const TrainedParameters& parameters);

}  // namespace ottava::checkpoint
