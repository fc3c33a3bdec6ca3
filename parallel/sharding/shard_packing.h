#pragma once

#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// Parameters that do not split evenly among shards, or are too small for a collective of their own, travel
/// together in one buffer of equal segments, one per rank. Within a segment each parameter takes the rows of
/// its largest shard; ranks with fewer rows leave the rest unused.
class ShardPacking {
 public:
  struct Item {
    Shape slice;
    int64_t alignment = 1;  ///< ParameterSpec::shard_alignment
  };
  ShardPacking(std::vector<Item> items, int shards);

  /// Smaller slices than this are packed, whatever their rows: the latency of a collective costs more than a
  /// copy.
  static constexpr int64_t kSmallBytes = 64 * 1024;
  /// True for a slice that goes into the pack: uneven, or small in the compute type.
  static bool wants(const Item& item, int shards, DType compute);

  int64_t segment_elements() const { return segment_; }
  /// The i-th parameter's rows of `rank` within that rank's segment (a tensor of segment_elements()).
  Tensor shard_view(const Tensor& segment, size_t i, int rank) const;
  /// Copies the i-th parameter out of the gathered segments [shards * segment] into its whole slice, or into
  /// them; at most two operations, however many ranks there are.
  void unpack(Stream& stream, const Tensor& segments, size_t i, const Tensor& slice) const;
  void pack(Stream& stream, const Tensor& slice, size_t i, const Tensor& segments) const;

 private:
  RowRange rows_of(size_t i, int rank) const;
  /// copy(rows [ranks, elements], segments [ranks, segment], their first column) for ranks that hold as many.
  template <class Copy>
  void each_piece(size_t i, const Tensor& slice, const Tensor& segments, const Copy& copy) const;

  std::vector<Item> items_;
  std::vector<int64_t> offsets_;
  int64_t segment_ = 0;
  int shards_;
};

}  // namespace ottava
