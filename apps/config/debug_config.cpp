#include "apps/config/debug_config.h"

#include "core/config/section.h"

namespace ottava {

using config::Value;

void declare(config::Section& s, DebugConfig& c) {
  s.meaning("repeatability");
  s.field("deterministic", c.deterministic)
      .meaning(
          "pin NCCL's algorithm and protocol, so that runs on several GPUs repeat bitwise; all else always "
          "does");
  s.foreign("deterministic_warn_only", Value::of(false)).noted("what cannot repeat is refused or not used");
  s.foreign("moe_force_load_balance", Value::of(false))
      .noted("the models here are dense: there are no experts");
  s.renamed("seed", "training.seed");
}

}  // namespace ottava
