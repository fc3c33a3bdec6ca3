#include "apps/train/task_scores.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/checkpoint/checksum.h"
#include "parallel/comm/agree.h"

namespace ottava {

std::vector<EncodedTask> open_tasks(const Experiment& e) {
  std::vector<EncodedTask> tasks;
  if (!e.config.evaluation.enable) return tasks;
  for (const NamedFilesConfig& set : e.config.evaluation.tasks) {
    ChoiceTask task{.name = set.name};
    for (const std::string& path : set.path) {
      const std::string file = find_input(e.config, "evaluation.tasks", path).string();
      const int64_t most = e.config.evaluation.max_examples, left = most - std::ssize(task.items);
      if (most >= 0 && left == 0) break;
      std::ranges::move(read_choice_task(file, most < 0 ? most : left).items, std::back_inserter(task.items));
    }
    ChoiceTokens tokens =
        encode_choices(task, *e.tokenizer, e.shape.validation_sequence, texts_begin_with_bos(e));
    tasks.push_back({std::move(task), std::move(tokens)});
  }
  return tasks;
}

void require_same_tasks(const std::vector<EncodedTask>& tasks, Communicator& control) {
  for (const auto& [task, tokens] : tasks) {
    std::string all;
    for (const ChoiceItem& item : task.items)
      all += fmt::format("{}\n{}\n{}\n{}\n", item.context, item.delimiter, item.gold,
                         fmt::join(item.choices, "\n"));
    require_equal_everywhere(control, fmt::format("the task {} of evaluation.tasks", task.name),
                             checkpoint::text_checksum(all));
  }
}

namespace {

// Where this rank's tokens are among those of a pass: context parallel ranks hold chunks of each sequence.
std::vector<size_t> places_of_rank(const TrainingShape& shape, const ContextParallelGroup& group) {
  std::vector<size_t> places;
  const int64_t row = shape.validation_sequence, chunk = row / (2 * group.size());
  for (int half : {0, 1}) {
    for (int64_t b = 0; b < shape.validation_batch; ++b) {
      for (int64_t i = 0; i < chunk; ++i) places.push_back(b * row + group.chunk_of(half) * chunk + i);
    }
  }
  return places;
}

std::vector<int32_t> taken(std::span<const int32_t> all, const std::vector<size_t>& places) {
  std::vector<int32_t> out;
  for (size_t place : places) out.push_back(all[place]);
  return out;
}

}  // namespace

ChoiceScores score_task(const EncodedTask& task, const Experiment& e, TrainingEngine& engine,
                        RankGroups& ranks, const std::function<void()>& before_each) {
  const bool shares = ranks.context_parallel.size() > 1;
  const std::vector<size_t> places =
      shares ? places_of_rank(e.shape, ranks.context_parallel) : std::vector<size_t>{};
  return score_choices(task.task, task.tokens,
                       {.batch = e.shape.validation_batch,
                        .sequence = e.shape.validation_sequence,
                        .rank = ranks.data_rank,
                        .ranks = ranks.data_size,
                        .share_windows = e.shape.block_causal,
                        .pass =
                            [&](const HostTokens& tokens, std::span<float> losses) {
                              before_each();
                              if (!shares) {
                                engine.validate(tokens);
                                std::ranges::copy(engine.token_losses(), losses.begin());
                                return;
                              }
                              const std::vector<int32_t> inputs = taken(tokens.inputs, places),
                                                         targets = taken(tokens.targets, places),
                                                         starts = taken(tokens.document_start, places),
                                                         positions = taken(tokens.positions, places);
                              engine.validate({inputs, targets, starts, positions});
                              const std::vector<float> mine = engine.token_losses();
                              std::ranges::fill(losses, 0.0f);
                              for (size_t i = 0; i < places.size(); ++i) losses[places[i]] = mine[i];
                            },
                        .add_up =
                            [&](std::span<double> sums) {
                              // Tensor-parallel ranks have the same losses; pipeline stages other than the
                              // last have none.
                              if (ranks.tensor_parallel.rank() != 0) std::ranges::fill(sums, 0.0);
                              reduce_on_host(*ranks.control, view_of(sums.data(), {std::ssize(sums)}),
                                             "scores of tasks");
                            }});
}

}  // namespace ottava
