#pragma once

#include <functional>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/evaluate/choice_scores.h"
#include "apps/step/training_engine.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// A task and its choices as the model sees them.
struct EncodedTask {
  ChoiceTask task;
  ChoiceTokens tokens;
};
/// The tasks of evaluation.tasks; none unless evaluation.enable. Throws what reading and encoding them
/// throws, so that no question ends the run later.
std::vector<EncodedTask> open_tasks(const Experiment& experiment);

/// Throws ConfigError on all ranks if their questions differ. All ranks call it.
void require_same_tasks(const std::vector<EncodedTask>& tasks, Communicator& control);

/// Asks the model in training. All ranks call it, and all get the scores. `before_each` is called before each
/// pass; what it throws, on all ranks, is thrown.
ChoiceScores score_task(const EncodedTask& task, const Experiment& experiment, TrainingEngine& engine,
                        RankGroups& ranks, const std::function<void()>& before_each);

}  // namespace ottava
