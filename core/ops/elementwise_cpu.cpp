#include "core/cpu/vec.h"
#include "core/ops/elementwise_kernels.h"

// Ceiling: memory bandwidth; nothing here does more than two operations per element.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class From, class To>
void convert(const From* source, To* destination, int64_t n) {
  for_each_vec(n, [&](int64_t i, auto lanes) { store(destination + i, load(source + i, lanes), lanes); });
}

template <class T, class B>
void add(const void* a, const void* b, void* out, int64_t n) {
  for_each_vec(n, [&](int64_t i, auto lanes) {
    Vec sum = load(static_cast<const T*>(a) + i, lanes) + load(static_cast<const B*>(b) + i, lanes);
    store(static_cast<T*>(out) + i, sum, lanes);
  });
}

template <class T>
void add_in_order(std::span<const void* const> addends, void* out, int64_t begin, int64_t end) {
  const auto at = [&](const void* addend) { return static_cast<const T*>(addend) + begin; };
  for_each_vec(end - begin, [&](int64_t i, auto lanes) {
    Vec sum = load(at(addends[0]) + i, lanes);
    for (const void* addend : addends.subspan(1)) sum = sum + load(at(addend) + i, lanes);
    store(static_cast<T*>(out) + begin + i, sum, lanes);
  });
}

template <class T>
double sum_all(const void* x, int64_t n) {
  DVec total{};
  for_each_vec(n, [&](int64_t i, auto lanes) { total += widen(load(static_cast<const T*>(x) + i, lanes)); });
  return sum(total);
}

}  // namespace

ElementwiseKernels elementwise_kernels() {
  return {.to_bf16 = convert<float, bf16>,
          .to_f32 = convert<bf16, float>,
          .add = {add<float, float>, add<bf16, bf16>},
          .add_bf16 = add<float, bf16>,
          .add_in_order = {add_in_order<float>, add_in_order<bf16>},
          .sum = {sum_all<float>, sum_all<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
