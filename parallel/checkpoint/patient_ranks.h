#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/stream.h"
#include "parallel/comm/communicator.h"

namespace ottava::checkpoint {

/// Ranks that work on files together, and the little that they exchange: short texts and one sum, never
/// tensor bytes. All but sum() waits up to an hour for a rank that is still at work
/// (parallel/comm/patience.h). All calls are collective and made by the rank's own thread.
class PatientRanks {
 public:
  /// One process.
  PatientRanks() = default;
  /// The ranks of a communicator that moves host memory (mpi, tcp, solo). It must outlive this.
  explicit PatientRanks(Communicator& communicator) : communicator_(&communicator) {}

  int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }

  /// Every rank's text, by rank.
  std::vector<std::string> all_gather(std::string_view text);
  /// Rank 0's text, on every rank.
  std::string of_rank_0(std::string_view text);
  /// values[i] = sum over ranks, modulo 2^64.
  void sum(std::span<uint64_t> values);

  /// Calls require_equal_everywhere() (parallel/comm/agree.h).
  void require_equal(std::string_view what, uint64_t hash);

  /// Calls fail_together() (parallel/comm/agree.h).
  void together(const std::function<void()>& work);
  /// The same for work that only rank 0 does.
  void on_rank_0(const std::function<void()>& work);

 private:
  Communicator* communicator_ = nullptr;
};

}  // namespace ottava::checkpoint
