#include "apps/config/debug_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, DebugConfig& c) {
  s.meaning("reproducibility");
  s.field("deterministic", c.deterministic,
          "fix NCCL's algorithm and protocol, so that runs on several GPUs are bitwise reproducible; "
          "everything else is anyway, unless attention.deterministic is false");
  s.renamed("seed", "training.seed");
}

}  // namespace ottava
