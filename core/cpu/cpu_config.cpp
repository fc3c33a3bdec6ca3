#include "core/cpu/cpu_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, CpuConfig& c) {
  s.meaning("how a CPU multiplies bf16 numbers; a GPU reads none of it");
  s.field("bf16_matmul", c.bf16_matmul,
          "products of linear layers; direct: by bf16 instructions (AVX512-BF16, AMX); widened: copied to "
          "f32 "
          "and multiplied there; auto: the faster of the two, by a measurement that is a decision of the "
          "run, "
          "or, for models too small to gain, direct where there are such instructions")
      .one_of({"auto", "direct", "widened"});
  s.field("bf16_attention", c.bf16_attention,
          "products of attention, likewise; auto for small models: direct where there is AMX")
      .one_of({"auto", "direct", "widened"});
}

}  // namespace ottava
