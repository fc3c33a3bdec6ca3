#include "apps/config/debug_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, DebugConfig& c) {
  s.meaning("repeatability");
  s.field("deterministic", c.deterministic,
          "pin NCCL's algorithm and protocol, so that runs on several GPUs repeat bitwise; all else always "
          "does");
  s.renamed("seed", "training.seed");
}

}  // namespace ottava
