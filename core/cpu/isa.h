#pragma once

#include <stdint.h>

#include <span>
#include <string_view>

#include "core/dtype.h"

namespace ottava::cpu {

/// Instruction sets for which kernels are compiled, smallest first. `avx2` includes FMA, F16C, BMI, BMI2
/// and POPCNT (Haswell, Zen 1); `avx512` means F, BW, DQ, VL and CD (Skylake-X, Zen 4); `avx512_fp16` adds
/// 16-bit arithmetic (Sapphire Rapids), which few kernels can use: the others run there as compiled for
/// `avx512`.
enum class Isa { baseline, avx2, avx512, avx512_fp16 };

/// The best set of this machine, or a smaller one if the environment variable OTTAVA_CPU_ISA names it. Throws
/// DeviceError if that names a set that the machine lacks or that does not exist.
Isa isa();
std::string_view name_of(Isa isa);
/// The best set of a machine with these features, named as in the compiler's options -mNAME. A virtual
/// machine may leave out any of them.
Isa best_isa(std::span<const std::string_view> features);

/// One kernel for each of an operation's two element types; to be called after the checks as
/// `kernels.forward[x.dtype](...)`.
template <class Function>
struct FloatKernel {
  Function* f32;
  Function* bf16;
  Function* operator[](DType dtype) const { return dtype == DType::f32 ? f32 : bf16; }
};

/// The rows that one call of a kernel works on, each of `cols` elements.
struct Rows {
  int64_t begin = 0, end = 0, cols = 0;
};
/// Columns [begin, end) of `rows` rows that lie `stride` elements apart.
struct Columns {
  int64_t begin = 0, end = 0, rows = 0, stride = 0;
};

}  // namespace ottava::cpu

/// Declares `Table name()` once per instruction set and, in ottava::cpu, `name()`, which returns the table to
/// use here. `Table` is a struct of function pointers; the file given to ottava_cpu_kernels() in CMake
/// defines `Table OTTAVA_ISA::name()`. Kernels are serial over ranges: loops over threads stay in the caller.
/// OTTAVA_CPU_KERNELS_AND_FP16 is for files given to ottava_cpu_kernels_and_fp16(), which have a table for
/// `avx512_fp16` too.
#if defined(__x86_64__)
#define OTTAVA_CPU_KERNELS(Table, name)                                 \
  namespace ottava::cpu {                                               \
  namespace baseline {                                                  \
  Table name();                                                         \
  }                                                                     \
  namespace avx2 {                                                      \
  Table name();                                                         \
  }                                                                     \
  namespace avx512 {                                                    \
  Table name();                                                         \
  }                                                                     \
  inline const Table& name() {                                          \
    static const Table table = isa() >= Isa::avx512 ? avx512::name()    \
                               : isa() == Isa::avx2 ? avx2::name()      \
                                                    : baseline::name(); \
    return table;                                                       \
  }                                                                     \
  }
#else
#define OTTAVA_CPU_KERNELS(Table, name)          \
  namespace ottava::cpu {                        \
  namespace baseline {                           \
  Table name();                                  \
  }                                              \
  inline const Table& name() {                   \
    static const Table table = baseline::name(); \
    return table;                                \
  }                                              \
  }
#endif

#if OTTAVA_HAS_AVX512_FP16  // the compiler knows it
#define OTTAVA_CPU_KERNELS_AND_FP16(Table, name)                               \
  namespace ottava::cpu {                                                      \
  namespace baseline {                                                         \
  Table name();                                                                \
  }                                                                            \
  namespace avx2 {                                                             \
  Table name();                                                                \
  }                                                                            \
  namespace avx512 {                                                           \
  Table name();                                                                \
  }                                                                            \
  namespace avx512_fp16 {                                                      \
  Table name();                                                                \
  }                                                                            \
  inline const Table& name() {                                                 \
    static const Table table = isa() == Isa::avx512_fp16 ? avx512_fp16::name() \
                               : isa() == Isa::avx512    ? avx512::name()      \
                               : isa() == Isa::avx2      ? avx2::name()        \
                                                         : baseline::name();        \
    return table;                                                              \
  }                                                                            \
  }
#else
#define OTTAVA_CPU_KERNELS_AND_FP16 OTTAVA_CPU_KERNELS
#endif
