#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/predict/memory_moves.h"
#include "apps/predict/planned_machine.h"
#include "core/io/json.h"

namespace ottava {

/// For programs: {schema, device, network, calibration, ranks, tokens_per_step, limit_gib, layouts: [{keys,
/// decisions, memory_gib, nccl_gib, snapshot_gib, persistent_gib, fullest_rank, fits, flops: {precision: n},
/// traffic: {calls, sent_bytes}, time: {median, low, high, compute, transfers, exposed, idle_share, classes:
/// {name: seconds}, axes: {name: {seconds, exposed}}, sources}, reason}]}. Times in seconds. Of a GPU that no
/// table has, `time` is absent. Without a limit, `limit_gib` is null and `fits` is absent.
Json plan_json(const std::vector<RecordedLayout>& layouts, const std::vector<std::string>& reasons,
               const std::optional<MemoryLimit>& limit, const Machine* machine, const MachineChoice& choice,
               const Experiment& experiment);

}  // namespace ottava
