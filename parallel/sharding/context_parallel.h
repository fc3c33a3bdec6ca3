#pragma once

#include "core/column_range.h"
#include "core/memory/arena.h"
#include "core/ops/rope.h"
#include "core/stream.h"
#include "parallel/comm/communicator.h"

namespace ottava {

/// The ranks that share each sequence. A sequence of S tokens is 2 size() chunks of S / (2 size()); this rank
/// holds the chunks rank() and 2 size() - 1 - rank(), which under a causal mask is equal work for all
/// (head-tail; arXiv:2407.21783, section 3.3.2). Rows of a rank's tensors are [2, B, chunk]: the first chunk
/// of each of its B sequences, then the second of each. Everything but attention treats them as 2 B sequences
/// with positions of their own. With one rank nothing here is called.
///
/// Numerics: what a query sees is summed in the same order as on one rank, so its output, log-sum-exp and dQ
/// have the same bits (with our kernels). dK and dV are f32 sums per rank, added in rank order and rounded
/// once: the same terms, grouped differently. Before rounding they differ from one rank's by less than 1e-6
/// of the sum of the terms' magnitudes. With cuDNN each rank's two shares are rounded to bf16 before they are
/// added.
///
/// Traffic per layer and micro-batch, as received by a rank: for keys and values (size() - 1) / size() of 2 B
/// S H_kv D elements, in forward and again in backward; for their gradients as many f32 elements in backward.
class ContextParallelGroup {
 public:
  ContextParallelGroup() = default;
  explicit ContextParallelGroup(Communicator& communicator);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Which of the 2 size() chunks of a sequence is this rank's first (half 0) or second (half 1).
  int64_t chunk_of(int half) const { return half == 0 ? rank_ : 2 * size_ - 1 - rank_; }

  /// The KV heads [first, first + count) of qkv [2 * B * chunk, row()].
  struct KeyHeads {
    AttentionHeads heads;
    int64_t first = 0, count = 0;
    int64_t width() const { return count * heads.head_dim; }
    ColumnRange keys() const { return columns(heads.heads + first); }
    ColumnRange values() const { return columns(heads.heads + heads.kv_heads + first); }

   private:
    ColumnRange columns(int64_t head) const {
      return {head * heads.head_dim, (head + count) * heads.head_dim};
    }
  };

  /// Keys and values being gathered.
  struct Gathering {
    Allocation mine, all;
    Request request;
  };
  /// Starts gathering keys and values of some heads from all ranks, in qkv's dtype.
  Gathering gather_keys_values(Stream& stream, Arena& arena, const Tensor& qkv, const KeyHeads& which) const;
  /// Waits for them. The result is [B * S, 2 * count * D], in order of position, keys before values
  /// (SeparateKeys::values).
  Allocation in_order(Stream& stream, Arena& arena, Gathering gathering, int64_t batch) const;

  /// Gradients being summed.
  struct Scattering {
    Allocation partial, mine;
    Request request;
  };
  /// Starts summing gradients f32 [B * S, 2 * count * D] over ranks, in rank order over MPI and TCP.
  Scattering scatter_key_value_gradients(Stream& stream, Arena& arena, Allocation gradients,
                                         int64_t batch) const;
  /// Waits for this rank's rows of the sums and writes them, rounded once, to the columns of these heads in
  /// dqkv.
  void finish(Stream& stream, Scattering scattering, const Tensor& dqkv, const KeyHeads& which) const;

 private:
  Communicator* communicator_ = nullptr;
  int rank_ = 0, size_ = 1;
};

}  // namespace ottava
