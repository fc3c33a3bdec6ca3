#include "apps/config/evaluation_config.h"

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, EvaluationConfig& c) {
  s.meaning("multiple-choice questions between steps, in batches of validation's size and length");
  s.field("enable", c.enable).meaning("ask at step 1, every freq steps and at the end");
  s.list("tasks", c.tasks)
      .meaning(
          "files of questions by name, as `ottava eval` takes them: query, choices and gold, HellaSwag's or "
          "ARC's");
  s.field("freq", c.freq).at_least(1).unit("steps").meaning("training steps between them");
  s.field("max_examples", c.max_examples).at_least(-1).meaning("questions of each task; -1: all");
}

void validate(const EvaluationConfig& c, config::Problems& problems) {
  check_names("evaluation.tasks", c.tasks, problems);
  if (c.enable && c.tasks.empty())
    problems.add("evaluation.tasks", "there is no task to evaluate: give one, or leave out enable");
  if (c.max_examples == 0)
    problems.add("evaluation.max_examples", "0 questions say nothing; expected -1 (all) or at least 1");
}

}  // namespace ottava
