#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/memory/arena.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

// An all-gather and a reduce-scatter of rows as messages, one transaction for each other rank, so that a
// product of one rank's rows runs while other ranks' rows are under way. They send as many bytes as the
// collectives. The i-th transaction of one rank pairs with the i-th of the other.

/// Rows of all ranks, which arrive one rank after another.
class GatheredRows {
 public:
  /// No rows: count() is 0.
  GatheredRows() = default;
  /// Starts all transfers. `locals`: this rank's rows [n,C] or [n] of one operand or several, which travel
  /// together; nothing may write to them before the last wait().
  GatheredRows(Stream& stream, Arena& arena, Communicator& ranks, std::vector<Allocation> locals,
               std::string_view label);

  /// Number of blocks: one for each rank.
  int count() const { return static_cast<int>(waits_.size()); }
  /// Waits for the i-th block to arrive: work put on the stream from now on may read these rows of the
  /// results. The first is this rank's own. Blocks are waited for once each, in order.
  RowRange wait(Stream& stream, int i) const;
  /// The k-th operand's rows of all ranks, in rank order: [n size, C].
  const Allocation& result(size_t k) const { return results_[k]; }

 private:
  int rank_ = 0;
  std::vector<Allocation> locals_, results_;
  std::vector<Request> waits_;  ///< the first is of this rank's own rows: done
};

/// The sum over ranks of a matrix [N,C] that each rank makes in blocks of N / size rows; this rank gets its
/// own rows [N / size, C]. Sums are made in rank order, in f32, and rounded once: bit for bit those of
/// Communicator::reduce_scatter over MPI and TCP.
class ScatteredRows {
 public:
  /// `parts` [N,C] f32 or bf16: where the blocks are made.
  ScatteredRows(Arena& arena, Communicator& ranks, Allocation parts, std::string_view label);

  int count() const { return ranks_.size(); }
  /// The rows of the i-th block to make; the last is this rank's own.
  RowRange block(int i) const;
  /// Sends the i-th block, which has been made, to its rank. Nothing may write to it before sum().
  void send(Stream& stream, int i);
  /// Waits for all blocks and returns the sum, in memory of this category.
  Allocation sum(Stream& stream, Arena& arena, MemoryCategory category);

 private:
  Communicator& ranks_;
  std::string label_;
  Allocation parts_, received_;
  std::vector<Request> requests_;
};

}  // namespace ottava
