#include "core/cpu/vec.h"
#include "tests/core/cpu/vec_probe.h"

namespace ottava::cpu::OTTAVA_ISA {
namespace {

void exp_of(const float* x, float* y, int64_t n) {
  for_each_vec(n, [&](int64_t i, auto lanes) { store(y + i, exp(load(x + i, lanes)), lanes); });
}
float sum_of(const float* x) { return sum(load(x)); }
float max_of(const float* x) { return max_lane(load(x)); }

}  // namespace

test::VecProbe vec_probe() { return {exp_of, sum_of, max_of}; }

}  // namespace ottava::cpu::OTTAVA_ISA
