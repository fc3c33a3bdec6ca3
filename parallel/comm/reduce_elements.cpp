#include "parallel/comm/reduce_elements.h"

#include <algorithm>
#include <type_traits>

namespace ottava {
namespace {

// Small enough for the sums to stay in the first-level cache while the inputs stream by.
constexpr int64_t kBlock = 1024;

template <ReduceOp op, class A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::sum) {
    if constexpr (std::is_integral_v<A>) {  // wraps around instead of being undefined
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  } else if constexpr (std::is_floating_point_v<A>) {
    return b > a || b != b ? b : a;
  } else {
    return std::max(a, b);
  }
}

template <ReduceOp op, class T>
void reduce(std::span<const void* const> inputs, void* out, int64_t count) {
  using A = std::conditional_t<std::is_same_v<T, bf16>, float, T>;
  A sums[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<A>(first[i]);
    for (const void* input : inputs.subspan(1)) {
      const T* next = static_cast<const T*>(input) + begin;
      for (int64_t i = 0; i < n; ++i) sums[i] = combine<op, A>(sums[i], static_cast<A>(next[i]));
    }
    T* to = static_cast<T*>(out) + begin;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sums[i]);
  }
}

template <class T>
void reduce(ReduceOp op, std::span<const void* const> inputs, void* out, int64_t count) {
  if (op == ReduceOp::max) return reduce<ReduceOp::max, T>(inputs, out, count);
  reduce<ReduceOp::sum, T>(inputs, out, count);
}

}  // namespace

void reduce_elements(DType dtype, ReduceOp op, std::span<const void* const> inputs, void* out,
                     int64_t count) {
  switch (dtype) {
    case DType::f32:
      return reduce<float>(op, inputs, out, count);
    case DType::bf16:
      return reduce<bf16>(op, inputs, out, count);
    case DType::f64:
      return reduce<double>(op, inputs, out, count);
    case DType::i32:
      return reduce<int32_t>(op, inputs, out, count);
    case DType::u32:
      return reduce<uint32_t>(op, inputs, out, count);
    case DType::i64:
      return reduce<int64_t>(op, inputs, out, count);
    default:
      fail<ShapeError>("reduce_elements", "{} cannot be reduced", name_of(dtype));
  }
}

}  // namespace ottava
