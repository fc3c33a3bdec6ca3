#include "core/cpu/bf16_products.h"

#include "core/cpu/dnnl_adapter.h"
#include "core/cpu/isa.h"

namespace ottava::cpu {

std::string_view name_of(Bf16Products products) {
  return products == Bf16Products::direct ? "direct" : "widened";
}

// OTTAVA_CPU_ISA below avx512 asks for what a smaller machine would do.
bool multiplies_bf16_directly() { return isa() >= Isa::avx512 && dnnl_multiplies_bf16(); }

ProductChoice usual_products() {
  return {.matmul = multiplies_bf16_directly() ? Bf16Products::direct : Bf16Products::widened,
          .attention = multiplies_bf16_by_amx() ? Bf16Products::direct : Bf16Products::widened};
}

}  // namespace ottava::cpu
