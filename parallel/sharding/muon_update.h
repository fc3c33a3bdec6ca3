#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "core/optim/muon.h"
#include "parallel/comm/communicator.h"
#include "parallel/sharding/fsdp.h"
#include "parallel/sharding/muon_owners.h"

namespace ottava {

struct MuonOptions {
  /// What the update is multiplied by. `original`: sqrt(max(1, rows / columns)). `match_rms_adamw`: 0.2
  /// sqrt(max(rows, columns)), which gives it the root mean square of AdamW's, so that learning rate and
  /// decay can be AdamW's too (arXiv:2502.16982).
  enum class Adjust { match_rms_adamw, original };
  MuonHyper hyper;
  Adjust adjust = Adjust::match_rms_adamw;
  DType precision = DType::bf16;  ///< of what travels and of Newton-Schulz
};

/// The update of all parameters whose rule is Muon, over the ranks that hold one replica of them (a pipeline
/// stage's: dp_shard x cp x tp). Each rank has rows, or columns, of every matrix; one rank owns it
/// (muon_owners.h) and orthogonalises it as a whole, so that the bits do not depend on how it is cut. Per
/// bucket one exchange brings the momentum's updates to the owners and another brings the results back, each
/// a group of sends; the next bucket's updates travel while this one is worked on. Replicas (HSDP) all do the
/// same work and send each other nothing.
///
/// The parts of a matrix that its owner does not hold travel once each way: over all N ranks at most 2 P
/// (N-1)/N elements of the precision for P parameters, fewer where a part of a fused matrix lies on few
/// ranks.
class MuonUpdate {
 public:
  /// `parameters` must outlive it. Throws ConfigError if `holders` are not the ranks of the
  /// shards, in their order.
  MuonUpdate(Stream& stream, Arena& arena, Communicator& holders, Fsdp& parameters, MuonOptions options);

  struct Training {
    float weight_decay = 0, lr_factor = 1;
    Tensor amax;  ///< AdamwTensor::amax
  };
  /// Starts the first exchange. Gradients must be complete; `scalars` as for adamw().
  void begin(const Tensor& scalars);
  /// Updates the weights; `training` has one entry per parameter of the table.
  void finish(const Tensor& scalars, std::span<const Training> training);

  const std::vector<MuonBucket>& buckets() const { return buckets_; }

 private:
  /// A rank's rectangle of a matrix, at a place within what one rank sends another.
  struct Piece {
    size_t matrix = 0;  ///< of its bucket
    int rank = 0;       ///< that sends or receives it
    ShardRun run;
    int64_t at = 0;
    Shape shape() const { return {run.rows(), run.columns()}; }
  };
  /// What goes to, or comes from, each rank. This rank's own block is part of what it sends and of nothing
  /// that it receives.
  struct Pieces {
    std::vector<Piece> list;
    std::vector<int64_t> begin;  ///< of each rank's block; one more at the end
    /// The piece, in the buffer of all of them.
    Tensor of(const Tensor& buffer, const Piece& piece) const {
      const int64_t first = begin[piece.rank] + piece.at;
      return buffer.slice(first, first + piece.shape().numel()).reshape(piece.shape());
    }
  };
  enum class End { sender, receiver };
  struct Travel {
    Pieces out, in;
  };
  struct Plan {
    Travel to_owners, to_holders;
  };
  struct Flight {
    Allocation out, in;
    Request request;
  };

  Plan plan_of(const MuonBucket& bucket) const;
  Pieces packed(std::vector<Piece> pieces, End end) const;
  Flight allocate(const Travel& travel, const std::string& name) const;
  void send(Flight& flight, const Travel& travel, const std::string& label) const;
  Tensor sent(const Travel& travel, const Flight& flight, const Piece& piece) const;
  Tensor received(const Travel& travel, const Flight& flight, const Piece& piece) const;
  Flight start(size_t bucket, const Tensor& scalars) const;
  Flight orthogonalise(size_t bucket, Flight arrived) const;
  void orthogonalise(const MuonMatrix& matrix, size_t index, const Plan& plan, const Flight& from,
                     const Flight& to) const;
  void apply(size_t bucket, Flight arrived, const Tensor& scalars, std::span<const Training> training) const;

  Stream& stream_;
  Arena& arena_;
  Communicator& holders_;
  Fsdp& parameters_;
  MuonOptions options_;
  std::vector<MuonBucket> buckets_;
  std::vector<Plan> plans_;
  std::optional<Flight> first_;
};

}  // namespace ottava
