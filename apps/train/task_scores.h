#pragma once

#include <functional>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/evaluate/choice_scores.h"
#include "apps/train/training_engine.h"
#include "parallel/ranks/rank_groups.h"

namespace ottava {

/// The tasks of evaluation.tasks; none unless evaluation.enable. Throws what reading them throws.
std::vector<ChoiceTask> open_tasks(const Experiment& experiment);

/// Throws ConfigError on all ranks if their questions differ. All ranks call it.
void require_same_tasks(const std::vector<ChoiceTask>& tasks, Communicator& control);

/// Asks the model in training. All ranks call it, and all get the scores. `before_each` is called before each
/// pass; what it throws, on all ranks, is thrown.
ChoiceScores score_task(const ChoiceTask& task, const Experiment& experiment, TrainingEngine& engine,
                        RankGroups& ranks, const std::function<void()>& before_each);

}  // namespace ottava
