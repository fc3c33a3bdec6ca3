#include "models/attention_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, AttentionConfig& c) {
  s.meaning("which kernels compute attention on a GPU; a CPU has one way");
  s.field("backend", c.backend,
          "flash: our kernels; cudnn: cuDNN's, where they were built in; auto: the fastest whose memory "
          "there is, by a measurement that is a decision of the run")
      .one_of({"auto", "flash", "cudnn"});
  s.field("deterministic", c.deterministic,
          "cudnn: only the backward that gives the same bits every time; false: auto may take the other one, "
          "which is faster where it is taken, and cudnn does");
}

}  // namespace ottava
