#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "core/memory/arena.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/sharding/row_blocks.h"

namespace ottava {

/// The tensor-parallel ranks that share each matrix product. Activations between products are cut along
/// tokens (sequence parallel), so a gather and a reduce-scatter take the place of an all-reduce. With one
/// rank gathers and sums of rows return their input, and all_reduce() leaves it as it is.
class TensorParallelGroup {
 public:
  TensorParallelGroup() = default;
  explicit TensorParallelGroup(Communicator& communicator);

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// A transfer under way, with its source and its result.
  struct Transfer {
    Allocation source, result;
    Request request;
    /// Returns `result`, which work put on the stream from now on may read, and releases the source.
    Allocation wait(Stream& stream);
  };
  /// gather_rows() and reduce_scatter_rows(), started here and ended by wait(). Nothing may write to x until
  /// then.
  Transfer start_gather_rows(Stream& stream, Arena& arena, const Allocation& x, std::string_view label,
                             MemoryCategory category = MemoryCategory::scratch) const;
  Transfer start_reduce_scatter_rows(Stream& stream, Arena& arena, const Allocation& x,
                                     std::string_view label,
                                     MemoryCategory category = MemoryCategory::scratch) const;

  /// gather_rows(), of several operands at once, and reduce_scatter_rows(), one rank's rows at a time
  /// (row_blocks.h). Only with two ranks or more.
  GatheredRows gather_row_blocks(Stream& stream, Arena& arena, std::vector<Allocation> locals,
                                 std::string_view label) const {
    return {stream, arena, *communicator_, std::move(locals), label};
  }
  ScatteredRows scatter_row_blocks(Arena& arena, Allocation parts, std::string_view label) const {
    return {arena, *communicator_, std::move(parts), label};
  }

  /// x [n,C] of every rank, in rank order: [n * size, C]; a vector [n] likewise. `category` is that of the
  /// result: activations if backward reads it again.
  Allocation gather_rows(Stream& stream, Arena& arena, const Allocation& x, std::string_view label,
                         MemoryCategory category = MemoryCategory::scratch) const;
  /// This rank's rows [N / size, C] of the sum over ranks of x [N,C].
  Allocation reduce_scatter_rows(Stream& stream, Arena& arena, const Allocation& x, std::string_view label,
                                 MemoryCategory category = MemoryCategory::scratch) const;
  /// x [N,V/size] of every rank side by side: [N,V]. A copy, with one rank too.
  Allocation gather_columns(Stream& stream, Arena& arena, const Tensor& x, std::string_view label) const;
  /// Reduces x in place over ranks.
  void all_reduce(Stream& stream, const Tensor& x, ReduceOp op, std::string_view label) const;

 private:
  Communicator* communicator_ = nullptr;
  int rank_ = 0, size_ = 1;
};

}  // namespace ottava
