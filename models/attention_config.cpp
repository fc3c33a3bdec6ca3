#include "models/attention_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, AttentionConfig& c) {
  s.meaning("which kernels compute attention on a GPU; a CPU has one way");
  s.field("backend", c.backend)
      .one_of({"auto", "flash", "cudnn"})
      .meaning(
          "flash: our kernels; cudnn: cuDNN's, where they were built in, with the deterministic backward; "
          "auto: the faster "
          "of the two, by a measurement that is a decision of the run");
}

}  // namespace ottava
