#include "apps/config/evaluation_config.h"

#include <algorithm>

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, EvaluationConfig& c) {
  s.meaning(
      "between steps, multiple-choice questions, in batches of validation's size and length, and texts that "
      "the model goes on with");
  s.field("enable", c.enable, "score tasks and continue prompts at step 1, every freq steps and at the end");
  s.list("tasks", c.tasks,
         "files of questions by name, as `ottava eval` takes them: query, choices and gold, HellaSwag's or "
         "ARC's");
  s.field("freq", c.freq, "training steps between them").at_least(1).unit("steps");
  s.field("max_examples", c.max_examples, "questions of each task; -1: all").at_least(-1);
  s.field("prompts", c.prompts, "texts to go on with: to the log, metrics.jsonl and TensorBoard");
  s.field("max_new_tokens", c.max_new_tokens, "added to each prompt").at_least(1).unit("tokens");
  s.field("temperature", c.temperature,
          "of the samples, drawn by training.seed; 0: always the likeliest token")
      .at_least(0);
}

void validate(const EvaluationConfig& c, config::Problems& problems) {
  check_names("evaluation.tasks", c.tasks, problems);
  if (c.enable && c.tasks.empty() && c.prompts.empty())
    problems.add("evaluation.tasks",
                 "there is no task to evaluate and no prompt: give one, or leave out enable");
  if (c.max_examples == 0)
    problems.add("evaluation.max_examples", "0 questions say nothing; expected -1 (all) or at least 1");
}

int64_t EvaluationConfig::longest_sample() const {
  size_t longest = 0;
  for (const std::string& prompt : prompts) longest = std::max(longest, prompt.size());
  return longest + 1 + max_new_tokens;
}

}  // namespace ottava
