#include "models/attention_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, AttentionConfig& c) {
  s.meaning("attention kernels on a GPU; a CPU has only one kind");
  s.field("backend", c.backend,
          "attention kernels; flash: ottava's own; cudnn: cuDNN's, if built in; auto: the fastest that fits "
          "in memory, measured before step 1 and recorded as a decision")
      .one_of({"auto", "flash", "cudnn"});
  s.field("deterministic", c.deterministic,
          "use only the backward of cuDNN that gives the same bits every time; false: cudnn uses the other "
          "one, and auto does if it is faster");
}

}  // namespace ottava
