#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/memory/arena.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"
#include "parallel/sharding/parameter_spec.h"

namespace ottava {

// An all-gather and a reduce-scatter of rows as messages, a transaction for each other rank: so that a
// product of one rank's rows runs while those of others are on their way. They send as many bytes. Between
// ranks a and b the i-th transaction of a is the i-th of b.

/// Rows of all ranks, which arrive one rank's after another's.
class GatheredRows {
 public:
  /// None: count() is 0.
  GatheredRows() = default;
  /// Starts all transfers. `locals`: this rank's rows [n,C] or [n] of one operand or several, which travel
  /// together; nothing may write to them before the last wait().
  GatheredRows(Stream& stream, Arena& arena, Communicator& ranks, std::vector<Allocation> locals,
               std::string_view label);

  /// Blocks: one for each rank.
  int count() const { return static_cast<int>(waits_.size()); }
  /// Waits for the i-th block to arrive: work put on the stream from now on may read these rows of the
  /// results. The first is this rank's own. Blocks are waited for once each, in order.
  RowRange wait(Stream& stream, int i) const;
  /// [n size, C] in rank order, of the k-th operand.
  const Allocation& result(size_t k) const { return results_[k]; }

 private:
  int rank_ = 0;
  std::vector<Allocation> locals_, results_;
  std::vector<Request> waits_;  ///< the first is of this rank's own rows: done
};

/// The sum over ranks of a matrix [N,C] that is made a block of N / size rows at a time; this rank gets its
/// rows [N / size, C]. Sums are made in rank order, in f32, and rounded once: bit for bit what
/// Communicator::reduce_scatter makes over MPI and TCP.
class ScatteredRows {
 public:
  /// `parts` [N,C] f32 or bf16: where the blocks are made.
  ScatteredRows(Arena& arena, Communicator& ranks, Allocation parts, std::string_view label);

  int count() const { return ranks_.size(); }
  /// The rows of the i-th block to make; the last is this rank's own.
  RowRange block(int i) const;
  /// The i-th block is made: it leaves for its rank. Nothing may write to it before sum().
  void send(Stream& stream, int i);
  /// Waits for all blocks. `category` of the result.
  Allocation sum(Stream& stream, Arena& arena, MemoryCategory category);

 private:
  Communicator& ranks_;
  std::string label_;
  Allocation parts_, received_;
  std::vector<Request> requests_;
};

}  // namespace ottava
