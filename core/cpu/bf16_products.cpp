#include "core/cpu/bf16_products.h"

#include "core/cpu/dnnl_adapter.h"
#include "core/cpu/isa.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ottava::cpu {
namespace {

/// Linux saves the tiles only of processes that ask (Documentation/arch/x86/xstate.rst); asking again does no
/// harm.
bool may_use_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

std::string_view name_of(Bf16Products products) {
  return products == Bf16Products::direct ? "direct" : "widened";
}

// OTTAVA_CPU_ISA below avx512 asks for what a smaller machine would do.
bool multiplies_bf16_directly() { return isa() >= Isa::avx512 && dnnl_multiplies_bf16(); }

bool multiplies_bf16_by_amx() {
  static const bool usable = multiplies_bf16_directly() && dnnl_uses_amx() && may_use_tiles();
  return usable;
}

ProductChoice usual_products() {
  return {.matmul = multiplies_bf16_directly() ? Bf16Products::direct : Bf16Products::widened,
          .attention = multiplies_bf16_by_amx() ? Bf16Products::direct : Bf16Products::widened};
}

}  // namespace ottava::cpu
