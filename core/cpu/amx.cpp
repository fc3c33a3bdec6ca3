#include "core/cpu/bf16_products.h"
#include "core/cpu/dnnl_adapter.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

// An object of its own: tests have another answer (tests/support/amx_host).
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

bool multiplies_bf16_by_amx() {
  static const bool usable = multiplies_bf16_directly() && dnnl_uses_amx() && may_use_tiles();
  return usable;
}

}  // namespace ottava::cpu
