#pragma once

#include <functional>
#include <vector>

#include "core/io/tensor_rectangle.h"
#include "parallel/checkpoint/contents.h"

namespace ottava::checkpoint {

/// Reads rectangles of stored tensors into shard memory, with buffers of at most 1 MiB (2 where types or
/// devices differ).
class ShardReader {
 public:
  /// `copy`: see TrainedParameters::copy; empty for host memory.
  explicit ShardReader(std::function<void(void*, const void*, size_t)> copy) : copy_(std::move(copy)) {}

  /// Called with the index in the tensor of the first element that is not finite.
  std::function<void(int64_t)> on_non_finite;

  /// Reads one rectangle and returns the element_checksum() of what was read. Throws FileError for types
  /// other than f32, bf16 and f16.
  uint64_t read(const SafetensorsFile& file, const SafetensorsEntry& entry, const TensorRectangle& rectangle,
                const ShardMemory& to);

 private:
  std::function<void(void*, const void*, size_t)> copy_;
  std::vector<char> stored_, cast_;
};

}  // namespace ottava::checkpoint
