#include "core/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/error.h"

namespace ottava::cpu {
namespace {

// What scripts/cmake/cpu_kernels.cmake compiles for, and popcnt, which GCC takes with -mavx2.
constexpr std::string_view kAvx2[] = {"avx2", "fma", "f16c", "bmi", "bmi2", "popcnt"};
constexpr std::string_view kAvx512[] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"};

std::vector<std::string_view> features_here() {
  std::vector<std::string_view> here;
#if defined(__x86_64__)
  const auto add = [&](std::string_view name, bool is_here) {
    if (is_here) here.push_back(name);
  };
  __builtin_cpu_init();
  add("avx2", __builtin_cpu_supports("avx2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("bmi", __builtin_cpu_supports("bmi"));
  add("bmi2", __builtin_cpu_supports("bmi2"));
  add("popcnt", __builtin_cpu_supports("popcnt"));
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  add("avx512dq", __builtin_cpu_supports("avx512dq"));
  add("avx512vl", __builtin_cpu_supports("avx512vl"));
  add("avx512cd", __builtin_cpu_supports("avx512cd"));
#if OTTAVA_HAS_AVX512_FP16
  add("avx512fp16", __builtin_cpu_supports("avx512fp16"));
#endif
  unsigned a = 0, b = 0, c = 0, d = 0;  // Clang 14 does not know f16c by its name
  add("f16c", __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C));
#endif
  return here;
}

Isa choose() {
  Isa best = best_isa(features_here());
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

Isa best_isa(std::span<const std::string_view> features) {
  const auto has = [&](std::string_view name) { return std::ranges::find(features, name) != features.end(); };
  if (!std::ranges::all_of(kAvx2, has)) return Isa::baseline;
  if (!std::ranges::all_of(kAvx512, has)) return Isa::avx2;
  return has("avx512fp16") ? Isa::avx512_fp16 : Isa::avx512;
}

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

std::string_view name_of(Isa isa) {
  static constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512", "avx512_fp16"};
  return kNames[static_cast<size_t>(isa)];
}

}  // namespace ottava::cpu
