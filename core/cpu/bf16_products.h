#pragma once

#include <string_view>

namespace ottava::cpu {

/// How a CPU multiplies bf16 numbers. Products are exact and sums are f32 either way, but the order of sums
/// differs, and attention's probabilities are rounded to bf16 only if multiplied directly.
enum class Bf16Products {
  direct,   ///< by bf16 instructions: AVX512-BF16 or AMX
  widened,  ///< copied to f32 and multiplied there: bitwise the same for any number of threads
};
/// "direct", "widened".
std::string_view name_of(Bf16Products products);

/// How a run multiplies: linear layers, and attention.
struct ProductChoice {
  Bf16Products matmul = Bf16Products::widened, attention = Bf16Products::widened;
  bool operator==(const ProductChoice&) const = default;
};

/// True if `direct` is possible: the CPU has bf16 instructions, and neither OTTAVA_CPU_ISA nor
/// DNNL_MAX_CPU_ISA forbids them.
bool multiplies_bf16_directly();
/// True if they can be AMX, for our own kernels too: the operating system lets this process use its
/// registers.
bool multiplies_bf16_by_amx();
/// The choice where nothing is measured: matmul directly wherever possible, attention only with AMX.
ProductChoice usual_products();

}  // namespace ottava::cpu

/// Declares `Table name()` for AVX512-BF16 and for AMX and, in ottava::cpu, `name()`, which returns a pointer
/// to the one to use here, null if bf16 is not multiplied directly. The file given to
/// ottava_cpu_kernels_of_pairs() in CMake defines `Table OTTAVA_ISA::name()`, which only a machine with the
/// instructions may call.
#if OTTAVA_HAS_PAIRS  // the compiler knows both
#define OTTAVA_PAIR_KERNELS(Table, name)                                                            \
  namespace ottava::cpu {                                                                           \
  namespace avx512_bf16 {                                                                           \
  Table name();                                                                                     \
  }                                                                                                 \
  namespace avx512_amx {                                                                            \
  Table name();                                                                                     \
  }                                                                                                 \
  inline const Table* name() {                                                                      \
    static const bool usable = multiplies_bf16_directly();                                          \
    if (!usable) return nullptr;                                                                    \
    static const Table table = multiplies_bf16_by_amx() ? avx512_amx::name() : avx512_bf16::name(); \
    return &table;                                                                                  \
  }                                                                                                 \
  }
#else
#define OTTAVA_PAIR_KERNELS(Table, name)         \
  namespace ottava::cpu {                        \
  inline const Table* name() { return nullptr; } \
  }
#endif
