#include "apps/train/task_scores.h"

#include <algorithm>

#include "parallel/ranks/agree.h"

namespace ottava {

std::vector<ChoiceTask> open_tasks(const Experiment& e) {
  std::vector<ChoiceTask> tasks;
  if (!e.config.evaluation.enable) return tasks;
  for (const ValidationSetConfig& set : e.config.evaluation.tasks) {
    ChoiceTask task{.name = set.name, .items = {}};
    for (const std::string& path : set.path) {
      const std::string file = find_input(e.config, "evaluation.tasks", path).string();
      std::ranges::move(read_choice_task(file, e.config.evaluation.max_examples).items,
                        std::back_inserter(task.items));
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

ChoiceScores score_task(const ChoiceTask& task, const Experiment& e, TrainingEngine& engine,
                        RankGroups& ranks) {
  return score_choices(task, *e.tokenizer,
                       {.batch = e.shape.validation_batch,
                        .sequence = e.shape.validation_sequence,
                        .rank = ranks.data_rank,
                        .ranks = ranks.data_size,
                        .share_windows = e.shape.block_causal,
                        .pass =
                            [&](const HostTokens& tokens, std::span<float> losses) {
                              engine.validate(tokens);
                              const std::vector<float> of_tokens = engine.token_losses();
                              std::ranges::copy(of_tokens, losses.begin());
                            },
                        .add_up =
                            [&](std::span<double> sums) {
                              reduce_on_host(*ranks.control_loss, view_of(sums.data(), {std::ssize(sums)}),
                                             "scores of tasks");
                            }});
}

}  // namespace ottava
