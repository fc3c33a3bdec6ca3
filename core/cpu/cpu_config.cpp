#include "core/cpu/cpu_config.h"

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, CpuConfig& c) {
  s.meaning("BF16 products on a CPU; without effect on a GPU");
  s.field("bf16_matmul", c.bf16_matmul,
          "matrix products of linear layers; direct: with BF16 instructions (AVX512-BF16, AMX); widened: "
          "converted to FP32 first; auto: the faster one, measured before step 1 and recorded as a decision, "
          "or, for models too small to gain, direct if the CPU has these instructions")
      .one_of({"auto", "direct", "widened"});
  s.field("bf16_attention", c.bf16_attention,
          "the same for the products of attention; for small models auto uses direct if the CPU has AMX")
      .one_of({"auto", "direct", "widened"});
}

}  // namespace ottava
