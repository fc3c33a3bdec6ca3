#include "models/attention_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, AttentionConfig& c) {
  s.meaning("attention kernels on a GPU; a CPU has only one kind");
  using enum AttentionConfig::Backend;
  s.choice("backend", c.backend, {{"auto", automatic}, {"flash", flash}, {"cudnn", cudnn}},
           "attention kernels; flash: ottava's own; cudnn: cuDNN's, if built in; auto: the fastest that fits "
           "in memory, measured before step 1 and recorded as a decision");
  s.field("deterministic", c.deterministic,
          "use only the backward of cuDNN that gives the same bits every time; false: cudnn uses the other "
          "one, and auto does if it is faster");
}

}  // namespace ottava
