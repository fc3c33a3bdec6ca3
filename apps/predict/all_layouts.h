#pragma once

#include <string>
#include <vector>

#include "apps/config/planned_experiment.h"
#include "apps/predict/layout.h"
#include "apps/predict/machine.h"

namespace ottava {

/// All layouts of so many ranks for this configuration that have the keys `fixed`, its global batch, model
/// and precision kept (FP8 is tried on and off where the configuration asks for it): pp x dp_replicate x
/// dp_shard x cp x tp with cp x tp within a machine, sequences at a time, recomputation, FP8 gathers, and
/// reducing each micro-batch or once; resharding where `fixed` says how, else automatic. pp: what
/// is_asked_for(); where there are several machines others of up to 16 ranks too, without copies of the
/// sharded model, with the configuration's cp, and where micro-batches x layers are 1,024 at most: longer
/// ones take too long to record unasked. Throws ConfigError for a key that no layout has, and where there is
/// no such layout.
std::vector<Layout> all_layouts(const PlannedExperiment& planned, const Machine& machine,
                                const std::vector<std::string>& fixed = {});

/// Whether the layout has these: "KEY=VALUE" of keys_of().
bool has_all(const Layout& layout, const std::vector<std::string>& fixed);

/// Pipelines that are tried whatever recording them takes: of 1 rank, of as many as the layout `given` in the
/// configuration has, and of what `fixed` names.
bool is_asked_for(int64_t pp, const Layout& given, const std::vector<std::string>& fixed);

}  // namespace ottava
