#include "models/activation_checkpoint_config.h"

#include <fmt/core.h>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/number.h"

namespace ottava {

void declare(config::Section& s, ActivationCheckpointConfig& c) {
  s.meaning("memory for time: what backward recomputes instead of keeping it");
  using Mode = ActivationCheckpointConfig::Mode;
  s.choice("mode", c.mode, {{"none", Mode::none}, {"selective", Mode::selective}, {"full", Mode::full}},
           "keep everything, some, or only the input of each block; results are bitwise the same")
      .refuse_value("memory_budget",
                    "it is not built yet; selective with selective_ac_option op comes nearest");
  s.field("selective_ac_option", c.selective_ac_option,
          "op: cheap operations of every block; n: every n-th block in full")
      .or_scalar();
}

int64_t ActivationCheckpointConfig::every_nth_block() const {
  return parse_number<int64_t>(selective_ac_option).value_or(0);
}

void validate(const ActivationCheckpointConfig& c, config::Problems& problems) {
  if (!c.per_op() && c.every_nth_block() < 1) {
    problems.add("activation_checkpoint.selective_ac_option",
                 "expected op or an integer >= 1, got the text \"{}\"", c.selective_ac_option);
  }
}

}  // namespace ottava
