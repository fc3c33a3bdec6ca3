#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/config/planned_experiment.h"
#include "apps/predict/layout.h"
#include "apps/predict/step_time.h"

namespace ottava {

/// A layout that was recorded, and what it takes.
struct RecordedLayout {
  Layout layout;
  StepPlan plan;                 ///< of the fullest rank
  StepFlops mean_flops;          ///< of all ranks
  std::optional<StepTime> time;  ///< where the device is known
  int role = 0;                  ///< of that rank, in its pipeline
  std::vector<int64_t> bytes_of_roles = {};
  double gib() const { return static_cast<double>(plan.memory.total_bytes()) / (int64_t{1} << 30); }
  double flops() const;
};

/// Of the ranks of a pipeline, or of rank 0 without one (sample_roles()); times where the machine is known.
RecordedLayout recorded_layout(const Layout& layout, std::vector<StepPlan> roles, const Machine* machine);

/// Records a step of a layout. Throws ConfigError where it cannot be had.
class LayoutRecorder {
 public:
  LayoutRecorder(const Config& config, const PlannedExperiment& planned, const Machine* machine)
      : config_(config), planned_(planned), machine_(machine) {}
  RecordedLayout record(const Layout& layout) const;

 private:
  const Config& config_;
  const PlannedExperiment& planned_;
  const Machine* machine_;
};

/// A change of the configuration that takes less memory.
struct MemoryMove {
  LayoutKeys keys;  ///< what changes
  RecordedLayout after;
};
/// What less memory would cost: each change by itself, those that cost least time for a GiB first, then,
/// where none of them fits `limit_gib`, the first of them together that do, or all. `ranks` stay as they are
/// but for the last resort, twice as many, four or eight times. Each was recorded.
std::vector<MemoryMove> memory_moves(const RecordedLayout& from, double limit_gib,
                                     const LayoutRecorder& recorder);

}  // namespace ottava
