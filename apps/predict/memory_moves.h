#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/planned_experiment.h"
#include "apps/predict/layout.h"
#include "apps/predict/nccl_memory.h"
#include "apps/predict/step_time.h"

namespace ottava {

/// A layout whose step was recorded, and what it takes.
struct RecordedLayout {
  Layout layout;
  StepPlan plan;                 ///< of the fullest place in the pipeline (sample_roles())
  StepFlops mean_flops;          ///< of all ranks
  std::optional<StepTime> time;  ///< where the device is known
  int role = 0;                  ///< that place
  std::vector<int64_t> bytes_of_roles = {};
  NcclMemory nccl = {};                          ///< of the fullest rank, where the device is known
  std::vector<Decisions::Entry> decisions = {};  ///< what a run would decide; none without a limit
  int64_t snapshot = 0;  ///< bytes that snapshots for checkpoints take beside the step (snapshots_beside())
  double gib() const { return static_cast<double>(plan.memory.total_bytes()) / (int64_t{1} << 30); }
  /// What has to fit: NCCL's memory too, and the snapshot.
  double gib_with_nccl() const {
    return gib() + static_cast<double>(nccl.bytes() + snapshot) / (int64_t{1} << 30);
  }
  /// Of the mean rank: those of a pipeline compute different things.
  double flops() const { return mean_flops.fp32 + mean_flops.bf16 + mean_flops.fp8; }
  /// What activation_checkpoint.mode auto came to; empty with another mode, and without a limit.
  std::string_view automatic_recompute() const;
};

/// From a plan for each place in a pipeline or, without one, for the only place (sample_roles()); with times
/// if the machine is known. `snapshots`: of each of these ranks (snapshots_beside()).
RecordedLayout recorded_layout(const Layout& layout, std::vector<StepPlan> roles, const Machine* machine,
                               const std::vector<int64_t>& snapshots);

/// Records the step that a run would take with a layout on ranks that may take `limit_gib` (decided_step.h);
/// without a limit, the first outcome of every open decision. Throws ConfigError for a layout that is not
/// possible.
class LayoutRecorder {
 public:
  LayoutRecorder(const Config& config, const PlannedExperiment& planned, const Machine* machine,
                 std::optional<double> limit_gib = {})
      : config_(config), planned_(planned), machine_(machine), limit_gib_(limit_gib) {}
  RecordedLayout record(const Layout& layout) const;
  /// The keys to change from one layout, the configuration's, to another: also the global batch, where it is
  /// not set and others of these keys would change it.
  LayoutKeys changes(const Layout& from, const Layout& to) const;
  /// Of another configuration.
  LayoutRecorder with(const Config& config) const { return {config, planned_, machine_, limit_gib_}; }

 private:
  const Config& config_;
  const PlannedExperiment& planned_;
  const Machine* machine_;
  std::optional<double> limit_gib_;
};

/// A change of the configuration that takes less memory.
struct MemoryMove {
  LayoutKeys keys;  ///< what changes
  RecordedLayout after;
};
/// What less memory would cost. First each change by itself, those that cost least time per GiB first; then,
/// if none of these fits `limit_gib`, as many of them together as it takes, or all. The number of ranks stays
/// the same except as a last resort: twice, four or eight times as many, the fewest that fit with such
/// changes and, where these are others, the fewest that fit without; eight times as many if there are none of
/// both. Mode auto stands for what it comes to,
/// where that is what another mode does. Every change was recorded by `recorder`, which has that limit.
std::vector<MemoryMove> memory_moves(const RecordedLayout& from, double limit_gib,
                                     const LayoutRecorder& recorder);

}  // namespace ottava
