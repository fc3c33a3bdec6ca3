#include "models/activation_checkpoint_config.h"

#include <fmt/core.h>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/text/number.h"

namespace ottava {

void declare(config::Section& s, ActivationCheckpointConfig& c) {
  s.meaning("activation checkpointing: what the backward pass recomputes to save memory");
  using Mode = ActivationCheckpointConfig::Mode;
  s.choice("mode", c.mode,
           {{"none", Mode::none},
            {"selective", Mode::selective},
            {"full", Mode::full},
            {"auto", Mode::automatic}},
           "activations kept for the backward pass; none: all; selective: some (see selective_ac_option); "
           "full: only the input of each block; auto: as many as fit into the memory that is free, on each "
           "rank of a pipeline; results are bitwise the same")
      .refuse_value("memory_budget", "use mode auto, which keeps as much as fits");
  s.field("selective_ac_option", c.selective_ac_option,
          "what mode selective recomputes; op: the cheap operations of every block; all_but_attention: every "
          "block, but not its attention; an integer n: every n-th block in full")
      .or_scalar();
}

int64_t ActivationCheckpointConfig::every_nth_block() const {
  return parse_number<int64_t>(selective_ac_option).value_or(0);
}

void validate(const ActivationCheckpointConfig& c, config::Problems& problems) {
  if (!c.per_op() && !c.all_but_attention() && c.every_nth_block() < 1) {
    problems.add("activation_checkpoint.selective_ac_option",
                 "expected op, all_but_attention or an integer >= 1, got the string \"{}\"",
                 c.selective_ac_option);
  }
}

}  // namespace ottava
