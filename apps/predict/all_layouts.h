#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/config/planned_experiment.h"
#include "apps/predict/layout.h"
#include "apps/predict/machine.h"

namespace ottava {

/// Among fixed keys it means only layouts of mode auto.
constexpr std::string_view kAutoRecompute = "activation_checkpoint.mode=auto";

/// All layouts of the planned number of ranks for this configuration that have the keys `fixed`. Global
/// batch, model and precision stay, except that FP8 is tried on and off if the configuration asks for it.
/// Varied are pp x dp_replicate x dp_shard x cp x tp, with cp x tp within a machine; sequences at a time;
/// recomputation, in each mode but auto, unless `fixed` says auto; reducing each micro-batch or once.
/// Resharding is as `fixed` says, else automatic. With FP8, shards gather codes unless `fixed` says
/// otherwise.
///
/// pp: what is_asked_for() and, if there are several machines, other values up to 16. The latter only without
/// copies of the sharded model, with the configuration's cp, at least as many micro-batches as stages, and at
/// most 1,024 micro-batches x layers: longer ones take too long to record unasked.
///
/// Throws ConfigError for a key that no layout has, and if there is no such layout.
std::vector<Layout> all_layouts(const PlannedExperiment& planned, const Machine& machine,
                                const std::vector<std::string>& fixed = {});

/// Whether the layout has all of these: "KEY=VALUE" as in keys_of().
bool has_all(const Layout& layout, const std::vector<std::string>& fixed);

/// True for pipelines that are tried, if they may be among the fastest, however long recording them takes: of
/// 1 rank, of as many ranks as the layout `given` in the configuration has, and of as many as `fixed` names.
bool is_asked_for(int64_t pp, const Layout& given, const std::vector<std::string>& fixed);

}  // namespace ottava
