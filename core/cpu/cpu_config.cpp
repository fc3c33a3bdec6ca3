#include "core/cpu/cpu_config.h"

#include <string>
#include <utility>
#include <vector>

#include "core/config/section.h"

namespace ottava {

void declare(config::Section& s, CpuConfig& c) {
  s.meaning("BF16 products on a CPU; without effect on a GPU");
  using Products = CpuConfig::Products;
  const std::vector<std::pair<std::string, Products>> names{
      {"auto", Products::automatic}, {"direct", Products::direct}, {"widened", Products::widened}};
  s.choice(
      "bf16_matmul", c.bf16_matmul, names,
      "matrix products of linear layers; direct: with BF16 instructions (AVX512-BF16, AMX); widened: "
      "converted to FP32 first; auto: the faster one, measured before step 1 and recorded as a decision, "
      "or, for models too small to gain, direct if the CPU has these instructions");
  s.choice("bf16_attention", c.bf16_attention, names,
           "the same for the products of attention; for small models auto uses direct if the CPU has AMX");
}

}  // namespace ottava
