#include "apps/config/evaluation_config.h"

#include <algorithm>

#include "apps/config/limits.h"
#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, EvaluationConfig& c) {
  s.meaning(
      "multiple-choice questions and sample texts during training; batches have validation's "
      "local_batch_size and seq_len");
  s.field("enable", c.enable,
          "score the tasks and continue the prompts at step 1, every freq steps and at the end");
  s.list("tasks", c.tasks,
         "named files of questions, as for `ottava eval`, with query, choices and gold, or as HellaSwag or "
         "ARC have them");
  s.field("freq", c.freq, "training steps between evaluations").at_least(1).unit("steps");
  s.field("max_examples", c.max_examples, "number of questions of each task; -1: all")
      .at_least(1)
      .or_value(-1);
  s.field("prompts", c.prompts,
          "texts for the model to continue, shown in the log, metrics.jsonl and TensorBoard; on the command "
          "line, where commas separate them, one that contains a comma is written as [\"Once, long ago\"]");
  s.field("max_new_tokens", c.max_new_tokens, "tokens to generate for each prompt")
      .range(1, kMostTokens)
      .unit("tokens");
  s.field("temperature", c.temperature,
          "sampling temperature, with training.seed as the random seed; 0: always the likeliest token")
      .at_least(0);
}

void validate(const EvaluationConfig& c, config::Problems& problems) {
  check_names("evaluation.tasks", c.tasks, problems);
  if (c.enable && c.tasks.empty() && c.prompts.empty())
    problems.add(
        "evaluation.tasks",
        "evaluation is enabled without tasks or prompts; add one, or set evaluation.enable to false");
}

int64_t EvaluationConfig::longest_sample() const {
  size_t longest = 0;
  for (const std::string& prompt : prompts) longest = std::max(longest, prompt.size());
  return longest + 1 + max_new_tokens;
}

}  // namespace ottava
