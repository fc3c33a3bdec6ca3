#pragma once

#include <string>
#include <vector>

#include "apps/report/startup_report.h"
#include "core/log.h"
#include "tests/support/captured_output.h"
#include "tests/support/overrides.h"
#include "tests/support/thread_groups.h"
#include "tests/support/thread_ranks.h"

namespace ottava::test {

inline Config config_with(const std::vector<std::string>& more) {
  return load_config("", words("--training.seq_len 64 --training.local_batch_size 1") + more);
}

/// What rank 0 of `ranks` says at start; with `recompute`, if that was decided so.
inline std::string report(int ranks, const std::vector<std::string>& more,
                          const std::vector<Recompute>& recompute = {}) {
  const Config config = config_with(more);
  log::set_level(log::Level::info);
  const CapturedOutput log;
  run_thread_ranks({.ranks = ranks}, [&](Communicator& world) {
    Experiment e = resolve_experiment(config, nullptr, ranks);
    if (!recompute.empty()) e.shape.model_options.recompute = recompute;
    RankGroups groups = groups_over(world, e.mesh);
    const StepPlan plan = record_step(e.shape, {DeviceType::cpu, 0}, groups);
    if (world.rank() == 0) log_startup_report(e, plan, {DeviceType::cpu, 0}, groups);
  });
  return log.text();
}

}  // namespace ottava::test
