#pragma once

#include <string>
#include <string_view>

#include "apps/config/experiment.h"
#include "apps/step/step_plan.h"
#include "core/data/loader.h"

namespace ottava {

/// Logs, on rank 0, what the run is about to do: model, parameters, memory by category, precision, data,
/// schedule.
void log_startup_report(const Experiment& experiment, const StepPlan& plan, Device device,
                        const RankGroups& ranks);

/// What a run reads, for its log: "NAME: 2 files, 1.5 MiB of text, ...", the number of sequences if an
/// earlier run counted them, how text becomes documents, and how many threads read it.
std::string data_text(std::string_view name, const data::TokenLoader& loader);

/// Throws MemoryError, the same on all ranks, if the plan does not fit a rank's part of its device, with the
/// largest items and the settings that shrink them and are not so yet; or if the snapshot of its asynchronous
/// checkpoints does not fit its part of the host (`snapshot_bytes` absent on all ranks: there is none). Every
/// rank makes the call.
void require_memory(const Experiment& experiment, const MemoryPlan& plan, Device device,
                    Communicator& control, std::optional<int64_t> snapshot_bytes = {});

}  // namespace ottava
