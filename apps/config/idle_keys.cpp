#include "apps/config/idle_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "apps/config/changed_keys.h"

namespace ottava {
namespace {

struct Switch {
  bool is_off = false;
  std::string_view why;                      ///< "validation.enable is false"
  std::vector<std::string_view> beginnings;  ///< of the keys that do nothing then
  std::vector<std::string_view> but = {};    ///< beginnings of keys among them that do something all the same
};

std::vector<Switch> switches_of(const Config& c) {
  // Questions are scored in batches of validation's size.
  std::vector<std::string_view> of_tasks;
  if (c.evaluation.scores()) of_tasks = {"validation.local_batch_size", "validation.seq_len"};
  return {
      {!c.validation.enable, "validation.enable is false", {"validation."}, of_tasks},
      {!c.evaluation.enable, "evaluation.enable is false", {"evaluation."}},
      {c.evaluation.enable && c.evaluation.tasks.empty(),
       "evaluation.tasks is empty",
       {"evaluation.max_examples"}},
      {c.evaluation.enable && c.evaluation.prompts.empty(),
       "evaluation.prompts is empty",
       {"evaluation.max_new_tokens", "evaluation.temperature"}},
      {c.lr_scheduler.decay_ratio == 0.0,
       "lr_scheduler.decay_ratio is 0",
       {"lr_scheduler.decay_type", "lr_scheduler.min_lr_factor"}},
      {!c.checkpoint.enable, "checkpoint.enable is false", {"checkpoint."}, {"checkpoint.initial_load_"}},
      {!c.profiling.enable_profiling, "profiling.enable_profiling is false", {"profiling."}},
      {!c.metrics.enable_tensorboard, "metrics.enable_tensorboard is false", {"metrics.save_tb_folder"}},
      {!c.optimizer.names(UpdateRule::muon),
       "no optimizer is Muon",
       {"optimizer.momentum", "optimizer.nesterov", "optimizer.ns_", "optimizer.adjust_lr_fn"}},
      {c.parallelism.pipeline_parallel_degree == 1,
       "parallelism.pipeline_parallel_degree is 1",
       {"parallelism.pipeline_parallel_"}},
      {c.parallelism.pipeline_parallel_degree > 1 && !c.parallelism.pipeline_parallel_split_points.empty(),
       "parallelism.pipeline_parallel_split_points says where stages begin",
       {"parallelism.pipeline_parallel_layers_per_stage", "parallelism.pipeline_parallel_first_stage_",
        "parallelism.pipeline_parallel_last_stage_"}},
      {c.parallelism.tensor_parallel_degree == 1,
       "parallelism.tensor_parallel_degree is 1",
       {"parallelism.enable_async_tensor_parallel", "parallelism.disable_loss_parallel"}},
      {c.activation_checkpoint.mode != ActivationCheckpointConfig::Mode::selective,
       "activation_checkpoint.mode is not selective",
       {"activation_checkpoint.selective_"}},
      {c.training.skip_spikes.sigma == 0, "training.skip_spikes.sigma is 0", {"training.skip_spikes.window"}},
      {c.training.epochs.has_value(), "training.epochs is set", {"training.steps"}},
      {c.comm.trace_buf_size == 0, "comm.trace_buf_size is 0", {"comm.save_traces_"}},
      {!reads_chats(c.training) && !validates_chats(c.training, c.validation),
       "no conversations are read",
       {"chat."}},
  };
}

}  // namespace

std::vector<std::string> idle_keys(const Config& config) {
  std::vector<std::string> notes;
  const std::vector<std::string> changed = changed_keys(print_config(Config{}), "the defaults", config);
  for (const Switch& s : switches_of(config)) {
    if (!s.is_off) continue;
    std::vector<std::string_view> idle;
    for (std::string_view change : changed) {
      const std::string_view key = change.substr(0, change.find(' '));
      const auto is_among = [&](const std::vector<std::string_view>& beginnings) {
        return std::ranges::any_of(beginnings, [&](std::string_view b) { return key.starts_with(b); });
      };
      if (is_among(s.beginnings) && !is_among(s.but)) idle.push_back(key);
    }
    if (!idle.empty())
      notes.push_back(fmt::format("{}, so {} {} no effect", s.why, fmt::join(idle, ", "),
                                  idle.size() == 1 ? "has" : "have"));
  }
  return notes;
}

}  // namespace ottava
