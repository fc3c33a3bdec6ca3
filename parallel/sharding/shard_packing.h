#pragma once

#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

/// Packs parameters that do not split evenly among shards, or are too small for a collective of their own,
/// into one buffer of equal segments, one per rank. In a segment each parameter takes as many rows as its
/// largest shard; ranks with fewer rows leave the rest unused. In f32 and bf16 every segment of a buffer that
/// begins at a multiple of 16 bytes does so too.
class ShardPacking {
 public:
  struct Item {
    Shape slice;
    int64_t alignment = 1;  ///< ParameterSpec::shard_alignment
  };
  ShardPacking(std::vector<Item> items, int shards);

  /// True for a slice that goes into the pack: uneven, or smaller than this in the compute type.
  static bool wants(const Item& item, int shards, DType compute, int64_t small_bytes);

  int64_t segment_elements() const { return segment_; }
  /// The i-th parameter's rows of `rank` within that rank's segment (a tensor of segment_elements()).
  Tensor shard_view(const Tensor& segment, size_t i, int rank) const;
  /// Copies the i-th parameter from the gathered segments [shards * segment] to its whole slice (unpack) or
  /// back (pack), with at most two operations however many ranks there are.
  void unpack(Stream& stream, const Tensor& segments, size_t i, const Tensor& slice) const;
  void pack(Stream& stream, const Tensor& slice, size_t i, const Tensor& segments) const;

 private:
  RowRange rows_of(size_t i, int rank) const;
  /// Calls copy(rows [ranks, elements], segments [ranks, segment], first column in these) for each set of
  /// ranks that hold equally many rows.
  template <class Copy>
  void each_piece(size_t i, const Tensor& slice, const Tensor& segments, const Copy& copy) const;

  std::vector<Item> items_;
  std::vector<int64_t> offsets_;
  int64_t segment_ = 0;
  int shards_;
};

}  // namespace ottava
