#include "parallel/checkpoint/shard_reader.h"

#include "parallel/checkpoint/checksum.h"

namespace ottava::checkpoint {

uint64_t ShardReader::read(const SafetensorsFile& file, const SafetensorsEntry& entry,
                           const TensorRectangle& rectangle, const ShardMemory& to) {
  const DType stored = weight_dtype_of(file, entry);
  uint64_t sum = 0;
  read_rectangle(file, entry, rectangle, stored_, [&](const ElementSpan& span, const void* piece) {
    size_t count = span.count;
    sum += element_checksum(piece, range_of(stored, span));
    if (on_non_finite) {
      size_t bad = find_non_finite({stored, piece}, count);
      if (bad < count) on_non_finite(span.first + bad);
    }
    size_t element_bytes = size_of(to.dtype), bytes = count * element_bytes;
    char* target = static_cast<char*>(to.data) + span.local * element_bytes;
    if (!copy_) {
      cast_floats({stored, piece}, {to.dtype, target}, count);
      return;
    }
    cast_.resize(std::max(cast_.size(), bytes));
    cast_floats({stored, piece}, {to.dtype, cast_.data()}, count);
    copy_(target, cast_.data(), bytes);
  });
  return sum;
}

}  // namespace ottava::checkpoint
