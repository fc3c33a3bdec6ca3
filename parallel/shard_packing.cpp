#include "parallel/shard_packing.h"

#include <utility>

#include "core/ops/elementwise.h"
#include "parallel/parameter_spec.h"

namespace ottava {
namespace {

int64_t columns_of(const Shape& slice) { return slice.rank() == 2 ? slice[1] : 1; }

Tensor elements(const Tensor& flat, int64_t begin, int64_t count) { return flat.slice(begin, begin + count); }

}  // namespace

ShardPacking::ShardPacking(std::vector<Shape> slices, int shards) : slices_(std::move(slices)), shards_(shards) {
  for (const Shape& slice : slices_) {
    offsets_.push_back(segment_);
    segment_ += (slice[0] + shards - 1) / shards * columns_of(slice);
  }
}

bool ShardPacking::wants(const Shape& slice, int shards, DType compute) {
  return slice[0] % shards != 0 || slice.numel() * static_cast<int64_t>(size_of(compute)) < kSmallBytes;
}

Tensor ShardPacking::shard_view(const Tensor& segment, size_t i, int rank) const {
  const Shape& slice = slices_[i];
  const int64_t rows = shard_rows(slice[0], rank, shards_).size(), columns = columns_of(slice);
  Tensor flat = elements(segment.reshape({segment.numel()}), offsets_[i], rows * columns);
  return slice.rank() == 2 ? flat.reshape({rows, columns}) : flat;
}

void ShardPacking::unpack(Stream& stream, const Tensor& segments, size_t i, const Tensor& slice) const {
  for (int rank = 0; rank < shards_; ++rank) {
    RowRange rows = shard_rows(slices_[i][0], rank, shards_);
    if (rows.size() == 0) continue;
    cast(stream, shard_view(elements(segments, rank * segment_, segment_), i, rank), slice.slice(rows.begin, rows.end));
  }
}

void ShardPacking::pack(Stream& stream, const Tensor& slice, size_t i, const Tensor& segments) const {
  for (int rank = 0; rank < shards_; ++rank) {
    RowRange rows = shard_rows(slices_[i][0], rank, shards_);
    if (rows.size() == 0) continue;
    cast(stream, slice.slice(rows.begin, rows.end), shard_view(elements(segments, rank * segment_, segment_), i, rank));
  }
}

}  // namespace ottava
