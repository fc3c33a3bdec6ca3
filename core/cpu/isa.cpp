#include "core/cpu/isa.h"

#include <cstdlib>

#include "core/error.h"

namespace ottava::cpu {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::baseline;
  bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512cd");
  if (!wide) return Isa::avx2;
#if OTTAVA_HAS_AVX512_FP16
  if (__builtin_cpu_supports("avx512fp16")) return Isa::avx512_fp16;
#endif
  return Isa::avx512;
#else
  return Isa::baseline;
#endif
}

Isa choose() {
  Isa best = detect();
  const char* wish = std::getenv("OTTAVA_CPU_ISA");
  if (!wish || !*wish) return best;
  for (Isa candidate : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_fp16}) {
    if (name_of(candidate) != wish) continue;
    if (candidate > best) {
      fail<DeviceError>("cpu", "OTTAVA_CPU_ISA={} but this machine supports at most {}", wish, name_of(best));
    }
    return candidate;
  }
  fail<DeviceError>("cpu", "OTTAVA_CPU_ISA={} is unknown: expected baseline, avx2, avx512 or avx512_fp16",
                    wish);
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

std::string_view name_of(Isa isa) {
  static constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512", "avx512_fp16"};
  return kNames[static_cast<size_t>(isa)];
}

}  // namespace ottava::cpu
