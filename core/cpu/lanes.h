#pragma once

// Numbers side by side, for kernel files only (those given to ottava_cpu_kernels): VectorOf<T, n> holds n of
// them, in one register where the instruction set has one that wide, else in two halves. GCC would take a
// vector type of any width, but one wider than a register it keeps in memory and compares and shuffles lane
// by lane, at several times the cost. Operators work lane by lane, on two vectors or on a vector and a
// number; a comparison gives all bits or none. Everything is in the instruction set's own namespace: nothing
// here may be merged with another set's copy.

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>  // only where the compiler's own lowering costs several times the one instruction
#endif

namespace ottava::cpu::OTTAVA_ISA {

#if defined(__AVX512F__)
inline constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kRegisterBytes = 32;
#else
inline constexpr int kRegisterBytes = 16;
#endif

/// Each half is a register or again two halves.
template <class H>
struct Two {
  using Half = H;
  Half lower, upper;
};
template <class Half>
Two(Half, Half) -> Two<Half>;
template <class V>
inline constexpr bool kIsTwo = false;
template <class Half>
inline constexpr bool kIsTwo<Two<Half>> = true;

template <class T, int lanes, bool fits = lanes* int{sizeof(T)} <= kRegisterBytes>
struct VectorType {
  typedef T Type __attribute__((vector_size(lanes * sizeof(T))));
};
template <class T, int lanes>
struct VectorType<T, lanes, false> {
  using Type = Two<typename VectorType<T, lanes / 2>::Type>;
};
template <class T, int lanes>
using VectorOf = typename VectorType<T, lanes>::Type;

template <class V>
struct ElementType {
  static V v();
  static auto element() { return v()[0]; }
  using Type = decltype(element());
};
template <class Half>
struct ElementType<Two<Half>> : ElementType<Half> {};
template <class V>
using ElementOf = typename ElementType<V>::Type;
template <class V>
inline constexpr int kLanesOf = sizeof(V) / sizeof(ElementOf<V>);

/// f of each register of a and of the same one of the others.
template <class F, class V, class... More>
[[gnu::always_inline]] inline auto by_register(F f, V a, More... more) {
  if constexpr (kIsTwo<V>) {
    const auto lower = by_register(f, a.lower, more.lower...);
    return Two{lower, by_register(f, a.upper, more.upper...)};
  } else {
    return f(a, more...);
  }
}

#define OTTAVA_LANE_OPERATOR(op)                                                        \
  template <class Half>                                                                 \
  [[gnu::always_inline]] inline auto operator op(Two<Half> a, Two<Half> b) {            \
    return Two{a.lower op b.lower, a.upper op b.upper};                                 \
  }                                                                                     \
  template <class Half>                                                                 \
  [[gnu::always_inline]] inline auto operator op(Two<Half> a, ElementOf<Two<Half>> b) { \
    return Two{a.lower op b, a.upper op b};                                             \
  }                                                                                     \
  template <class Half>                                                                 \
  [[gnu::always_inline]] inline auto operator op(ElementOf<Two<Half>> a, Two<Half> b) { \
    return Two{a op b.lower, a op b.upper};                                             \
  }
#define OTTAVA_LANE_ASSIGNMENT(op)                                             \
  template <class Half, class B>                                               \
  [[gnu::always_inline]] inline Two<Half>& operator op##=(Two<Half>& a, B b) { \
    return a = a op b;                                                         \
  }
OTTAVA_LANE_OPERATOR(+)
OTTAVA_LANE_OPERATOR(-)
OTTAVA_LANE_OPERATOR(*)
OTTAVA_LANE_OPERATOR(/)
OTTAVA_LANE_OPERATOR(&)
OTTAVA_LANE_OPERATOR(|)
OTTAVA_LANE_OPERATOR(^)
OTTAVA_LANE_OPERATOR(<<)
OTTAVA_LANE_OPERATOR(>>)
OTTAVA_LANE_OPERATOR(<)
OTTAVA_LANE_OPERATOR(>)
OTTAVA_LANE_OPERATOR(==)
OTTAVA_LANE_OPERATOR(!=)
OTTAVA_LANE_ASSIGNMENT(+)
OTTAVA_LANE_ASSIGNMENT(-)
OTTAVA_LANE_ASSIGNMENT(*)
OTTAVA_LANE_ASSIGNMENT(&)
OTTAVA_LANE_ASSIGNMENT(|)
#undef OTTAVA_LANE_OPERATOR
#undef OTTAVA_LANE_ASSIGNMENT
template <class Half>
[[gnu::always_inline]] inline Two<Half> operator-(Two<Half> a) {
  return {-a.lower, -a.upper};
}
template <class Half>
[[gnu::always_inline]] inline Two<Half> operator~(Two<Half> a) {
  return {~a.lower, ~a.upper};
}

/// The same bits as another type.
template <class To, class From>
[[gnu::always_inline]] inline To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (kIsTwo<To> && kIsTwo<From>) {
    return {bits_as<typename To::Half>(v.lower), bits_as<typename To::Half>(v.upper)};
  } else {
    To r;
    __builtin_memcpy(&r, &v, sizeof r);
    return r;
  }
}

/// From memory and to it, whatever is there.
template <class V>
[[gnu::always_inline]] inline V read_lanes(const void* p) {
  if constexpr (kIsTwo<V>) {
    using Half = typename V::Half;
    return {read_lanes<Half>(p), read_lanes<Half>(static_cast<const char*>(p) + sizeof(Half))};
  } else {
    V v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
}
template <class V>
[[gnu::always_inline]] inline void write_lanes(void* p, V v) {
  if constexpr (kIsTwo<V>) {
    write_lanes(p, v.lower);
    write_lanes(static_cast<char*>(p) + sizeof v.lower, v.upper);
  } else {
    __builtin_memcpy(p, &v, sizeof v);
  }
}

template <class V>
[[gnu::always_inline]] inline ElementOf<V> first_lane(V v) {
  if constexpr (kIsTwo<V>) {
    return first_lane(v.lower);
  } else {
    return v[0];
  }
}

#if defined(__AVX512F__)
#define OTTAVA_OF_FLOATS(name, a, b) _mm512_##name##_ps(bits_as<__m512>(a), bits_as<__m512>(b))
#elif defined(__AVX2__)
#define OTTAVA_OF_FLOATS(name, a, b) _mm256_##name##_ps(bits_as<__m256>(a), bits_as<__m256>(b))
#elif defined(__x86_64__)
#define OTTAVA_OF_FLOATS(name, a, b) _mm_##name##_ps(bits_as<__m128>(a), bits_as<__m128>(b))
#endif
template <class V>
inline constexpr bool kIsRegisterOfFloats = false;
template <>
inline constexpr bool kIsRegisterOfFloats<VectorOf<float, kRegisterBytes / 4>> = true;

/// Where one of the two is NaN, b.
template <class V>
[[gnu::always_inline]] inline V max(V a, V b) {
  return by_register(
      [](auto x, auto y) {
#if defined(OTTAVA_OF_FLOATS)
        if constexpr (kIsRegisterOfFloats<decltype(x)>)
          return bits_as<decltype(x)>(OTTAVA_OF_FLOATS(max, x, y));
#endif
        return x > y ? x : y;
      },
      a, b);
}
template <class V>
[[gnu::always_inline]] inline V min(V a, V b) {
  return by_register(
      [](auto x, auto y) {
#if defined(OTTAVA_OF_FLOATS)
        if constexpr (kIsRegisterOfFloats<decltype(x)>)
          return bits_as<decltype(x)>(OTTAVA_OF_FLOATS(min, x, y));
#endif
        return x < y ? x : y;
      },
      a, b);
}
#undef OTTAVA_OF_FLOATS

// Shuffles: lane i of the result is lane OTTAVA_LANE(i) of a register, or of a second one behind it.
#define OTTAVA_LANES_2(lane) lane(0), lane(1)
#define OTTAVA_LANES_4(lane) OTTAVA_LANES_2(lane), lane(2), lane(3)
#define OTTAVA_LANES_8(lane) OTTAVA_LANES_4(lane), lane(4), lane(5), lane(6), lane(7)
#define OTTAVA_LANES_16(lane) \
  OTTAVA_LANES_8(lane), lane(8), lane(9), lane(10), lane(11), lane(12), lane(13), lane(14), lane(15)
#define OTTAVA_SHUFFLED(a, b, lane)                              \
  if constexpr (n == 16) {                                       \
    return __builtin_shufflevector(a, b, OTTAVA_LANES_16(lane)); \
  } else if constexpr (n == 8) {                                 \
    return __builtin_shufflevector(a, b, OTTAVA_LANES_8(lane));  \
  } else if constexpr (n == 4) {                                 \
    return __builtin_shufflevector(a, b, OTTAVA_LANES_4(lane));  \
  } else {                                                       \
    static_assert(n == 2);                                       \
    return __builtin_shufflevector(a, b, OTTAVA_LANES_2(lane));  \
  }

/// Lanes `width` apart, a power of two, change places.
template <int width, class V>
[[gnu::always_inline]] inline V swapped(V v) {
  constexpr int n = kLanesOf<V>;
  if constexpr (!kIsTwo<V>) {
#define OTTAVA_LANE(i) ((i) ^ width)
    OTTAVA_SHUFFLED(v, v, OTTAVA_LANE)
#undef OTTAVA_LANE
  } else if constexpr (2 * width == n) {
    return {v.upper, v.lower};
  } else {
    return {swapped<width>(v.lower), swapped<width>(v.upper)};
  }
}

/// All lanes by `pair`, those furthest apart first: (((0, 8), (4, 12)), ...) of sixteen.
template <class V, class Pair>
[[gnu::always_inline]] inline ElementOf<V> all_lanes(V v, Pair pair) {
  constexpr int n = kLanesOf<V>;
  if constexpr (kIsTwo<V>) {
    return all_lanes(pair(v.lower, v.upper), pair);
  } else {
    if constexpr (n > 8) v = pair(v, swapped<8>(v));
    if constexpr (n > 4) v = pair(v, swapped<4>(v));
    if constexpr (n > 2) v = pair(v, swapped<2>(v));
    return pair(v, swapped<1>(v))[0];
  }
}
template <class V>
[[gnu::always_inline]] inline ElementOf<V> sum(V v) {
  return all_lanes(v, [](auto a, auto b) { return a + b; });
}
template <class V>
[[gnu::always_inline]] inline ElementOf<V> max_lane(V v) {
  return all_lanes(v, [](auto a, auto b) { return max(a, b); });
}

}  // namespace ottava::cpu::OTTAVA_ISA
