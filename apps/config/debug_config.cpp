#include "apps/config/debug_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, DebugConfig& c) {
  s.meaning("reproducibility");
  s.field("deterministic", c.deterministic,
          "fix NCCL's algorithm and protocol, so that runs on several GPUs are bitwise reproducible; "
          "everything else always is");
  s.renamed("seed", "training.seed");
}

}  // namespace ottava
