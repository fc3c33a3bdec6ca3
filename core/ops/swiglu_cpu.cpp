#include "core/cpu/exponentials.h"
#include "core/cpu/vec.h"
#include "core/ops/swiglu_kernels.h"

// Forward moves 6 bytes per bf16 output and spends some 40 instructions per 16 of them: as long as the memory
// takes with AVX-512, bound by arithmetic below it.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

/// As exact as results of type T need it.
template <class T>
[[gnu::always_inline]] inline Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp(-x));
}
#if defined(__AVX512F__)
// A division takes as long as six of these instructions. Zero where the exponential is 2^125 or more; below
// that the estimate of the reciprocal is a normal number, and one step of Newton's makes 28 bits of its 14.
template <>
[[gnu::always_inline]] inline Vec sigmoid<bf16>(Vec x) {
  const Vec power = x * -kLog2e, d = 1.0f + exp2_for_bf16(min(splat(125.0f), power));
  const __mmask16 not_zero = _mm512_cmp_ps_mask(bits_as<__m512>(power), _mm512_set1_ps(125.0f), _CMP_NGE_UQ);
  const Vec estimate = bits_as<Vec>(_mm512_maskz_rcp14_ps(not_zero, bits_as<__m512>(d)));
  return estimate + estimate * (1.0f - d * estimate);
}
#endif

template <class T>
uint32_t forward(const SwigluForward& a, Rows rows) {
  UVec amax{};
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const T* gate = static_cast<const T*>(a.gate_up.data) + i * 2 * rows.cols;
    const T* up = gate + rows.cols;
    T* out = static_cast<T*>(a.out.data) + i * rows.cols;
    for_each_vec(rows.cols, [&](int64_t c, auto lanes) {
      fetch_ahead(gate + c), fetch_ahead(up + c), fetch_target_ahead(out + c);
      Vec g = load(gate + c, lanes);
      store_with_amax(out + c, g * sigmoid<T>(g) * load(up + c, lanes), lanes, amax);
    });
  }
  return max_lane(amax);
}

template <class T>
uint32_t backward(const SwigluBackward& a, Rows rows) {
  const bool in_place = a.dgate_up.data == a.gate_up.data;
  UVec amax{};
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const T* dout = static_cast<const T*>(a.dout.data) + i * rows.cols;
    const T* gate = static_cast<const T*>(a.gate_up.data) + i * 2 * rows.cols;
    const T* up = gate + rows.cols;
    T* dgate = static_cast<T*>(a.dgate_up.data) + i * 2 * rows.cols;
    T* dup = dgate + rows.cols;
    T* out = a.out.data ? static_cast<T*>(a.out.data) + i * rows.cols : nullptr;
    for_each_vec(rows.cols, [&](int64_t c, auto lanes) {
      fetch_ahead(dout + c), fetch_ahead(gate + c), fetch_ahead(up + c);
      if (!in_place) fetch_target_ahead(dgate + c), fetch_target_ahead(dup + c);
      Vec d = load(dout + c, lanes), g = load(gate + c, lanes), u = load(up + c, lanes);
      Vec s = sigmoid<T>(g), silu = g * s;
      store_with_amax(dgate + c, d * u * (s * (1.0f + g * (1.0f - s))), lanes, amax);
      store_with_amax(dup + c, d * silu, lanes, amax);
      if (!out) return;
      fetch_target_ahead(out + c);
      store(out + c, silu * u, lanes);
    });
  }
  return max_lane(amax);
}

}  // namespace

SwigluKernels swiglu_kernels() {
  return {{forward<float>, forward<bf16>}, {backward<float>, backward<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
