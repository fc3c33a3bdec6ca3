#include "parallel/sharding/shard_packing.h"

#include <utility>

#include "core/ops/elementwise.h"

namespace ottava {
namespace {

int64_t columns_of(const Shape& slice) { return slice.rank() == 2 ? slice[1] : 1; }

Tensor elements(const Tensor& flat, int64_t begin, int64_t count) { return flat.slice(begin, begin + count); }

}  // namespace

ShardPacking::ShardPacking(std::vector<Item> items, int shards) : items_(std::move(items)), shards_(shards) {
  for (const Item& item : items_) {
    offsets_.push_back(segment_);
    segment_ += largest_shard_rows(item.slice[0], shards, item.alignment) * columns_of(item.slice);
  }
}

bool ShardPacking::wants(const Item& item, int shards, DType compute) {
  return item.slice[0] % (shards * item.alignment) != 0 ||
         item.slice.numel() * static_cast<int64_t>(size_of(compute)) < kSmallBytes;
}

RowRange ShardPacking::rows_of(size_t i, int rank) const {
  return shard_rows(items_[i].slice[0], rank, shards_, items_[i].alignment);
}

Tensor ShardPacking::shard_view(const Tensor& segment, size_t i, int rank) const {
  const Shape& slice = items_[i].slice;
  const int64_t rows = rows_of(i, rank).size(), columns = columns_of(slice);
  Tensor flat = elements(segment.reshape({segment.numel()}), offsets_[i], rows * columns);
  return slice.rank() == 2 ? flat.reshape({rows, columns}) : flat;
}

void ShardPacking::unpack(Stream& stream, const Tensor& segments, size_t i, const Tensor& slice) const {
  for (int rank = 0; rank < shards_; ++rank) {
    const RowRange rows = rows_of(i, rank);
    if (rows.size() == 0) continue;
    cast(stream, shard_view(elements(segments, rank * segment_, segment_), i, rank),
         slice.slice(rows.begin, rows.end));
  }
}

void ShardPacking::pack(Stream& stream, const Tensor& slice, size_t i, const Tensor& segments) const {
  for (int rank = 0; rank < shards_; ++rank) {
    const RowRange rows = rows_of(i, rank);
    if (rows.size() == 0) continue;
    cast(stream, slice.slice(rows.begin, rows.end),
         shard_view(elements(segments, rank * segment_, segment_), i, rank));
  }
}

}  // namespace ottava
