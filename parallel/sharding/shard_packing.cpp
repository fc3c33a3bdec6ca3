#include "parallel/sharding/shard_packing.h"

#include <utility>

#include "core/ops/elementwise.h"
#include "core/round_up.h"

namespace ottava {
namespace {

// 16 bytes of bf16. NCCL copies what does not begin at a multiple of them element by element, in all_gather
// byte by byte: 6.3 MB took 7 ms instead of 2 (NVIDIA/nccl#413, horovod/horovod#3727).
constexpr int64_t kSegmentMultiple = 8;

int64_t columns_of(const Shape& slice) { return slice.rank() == 2 ? slice[1] : 1; }

}  // namespace

ShardPacking::ShardPacking(std::vector<Item> items, int shards) : items_(std::move(items)), shards_(shards) {
  for (const Item& item : items_) {
    offsets_.push_back(segment_);
    segment_ += largest_shard_rows(item.slice[0], shards, item.alignment) * columns_of(item.slice);
  }
  segment_ = round_up(segment_, kSegmentMultiple);
}

bool ShardPacking::wants(const Item& item, int shards, DType compute, int64_t small_bytes) {
  return item.slice[0] % (shards * item.alignment) != 0 ||
         item.slice.numel() * size_of(compute) < small_bytes;
}

RowRange ShardPacking::rows_of(size_t i, int rank) const {
  return shard_rows(items_[i].slice[0], rank, shards_, items_[i].alignment);
}

Tensor ShardPacking::shard_view(const Tensor& segment, size_t i, int rank) const {
  const Shape& slice = items_[i].slice;
  const int64_t rows = rows_of(i, rank).size(), columns = columns_of(slice);
  Tensor flat = segment.reshape({segment.numel()}).slice(offsets_[i], offsets_[i] + rows * columns);
  return slice.rank() == 2 ? flat.reshape({rows, columns}) : flat;
}

// Ranks with full shards take one strided copy, in which row r of the matrices is rank r's; the rank with
// fewer rows takes another.
template <class Copy>
void ShardPacking::each_piece(size_t i, const Tensor& slice, const Tensor& segments, const Copy& copy) const {
  const Item& item = items_[i];
  const int64_t rows = largest_shard_rows(item.slice[0], shards_, item.alignment),
                whole = item.slice[0] / rows, count = rows * columns_of(item.slice);
  if (whole > 0) {
    copy(slice.slice(0, whole * rows).reshape({whole, count}),
         segments.reshape({shards_, segment_}).slice(0, whole), offsets_[i]);
  }
  const Tensor rest = slice.slice(whole * rows, item.slice[0]);
  if (rest.numel() > 0)
    copy(rest.reshape({1, rest.numel()}), segments.reshape({shards_, segment_}).slice(whole, whole + 1),
         offsets_[i]);
}

void ShardPacking::unpack(Stream& stream, const Tensor& segments, size_t i, const Tensor& slice) const {
  each_piece(i, slice, segments, [&](const Tensor& rows, const Tensor& packed, int64_t column) {
    copy_columns(stream, packed, {column, column + rows.cols()}, rows, 0);
  });
}

void ShardPacking::pack(Stream& stream, const Tensor& slice, size_t i, const Tensor& segments) const {
  each_piece(i, slice, segments, [&](const Tensor& rows, const Tensor& packed, int64_t column) {
    copy_columns(stream, rows, {0, rows.cols()}, packed, column);
  });
}

}  // namespace ottava
