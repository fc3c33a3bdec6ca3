#include "core/cpu/exponentials.h"
#include "core/cpu/vec.h"
#include "tests/core/cpu/vec_probe.h"

namespace ottava::cpu::OTTAVA_ISA {
namespace {

void exp_of(const float* x, float* y, int64_t n) {
  for_each_vec(n, [&](int64_t i, auto lanes) { store(y + i, exp(load(x + i, lanes)), lanes); });
}
void exp2_of(const float* x, float* y, int64_t n) {
  for_each_vec(n, [&](int64_t i, auto lanes) { store(y + i, exp2(load(x + i, lanes)), lanes); });
}
void exp2_for_bf16_of(const float* x, float* y, int64_t n) {
  for_each_vec(n, [&](int64_t i, auto lanes) { store(y + i, exp2_for_bf16(load(x + i, lanes)), lanes); });
}
float sum_of(const float* x) { return sum(load(x)); }
float max_of(const float* x) { return max_lane(load(x)); }
void shuffles_of(const uint32_t* a, const uint32_t* b, uint32_t* out) {
  const UVec x = read_lanes<UVec>(a), y = read_lanes<UVec>(b);
  const UVec all[] = {swapped<1>(x), swapped<2>(x),  swapped<4>(x),       swapped<8>(x),
                      zip_low(x, y), zip_high(x, y), zip_pairs_low(x, y), zip_pairs_high(x, y)};
  for (const UVec& v : all) write_lanes(out, v), out += kLanes;
}
void narrowed_of(const uint32_t* a, uint32_t* out) {
  write_lanes(out, widen(narrow(read_lanes<UVec>(a))));
  write_lanes(out + kLanes, widen(narrow_to_bytes(read_lanes<UVec>(a))));
}
double wide_sum_of(const float* x) { return sum(widen(load(x))); }
void roots_of(const float* x, float* y) { store(y, sqrt(load(x))); }
void kept_of(const float* x, int count, float* y) { store(y, keep(load(x), Part{count}, 7.0f)); }

}  // namespace

test::VecProbe vec_probe() {
  return {exp_of,      exp2_of,     exp2_for_bf16_of, sum_of,   max_of,
          shuffles_of, narrowed_of, wide_sum_of,      roots_of, kept_of};
}

}  // namespace ottava::cpu::OTTAVA_ISA
