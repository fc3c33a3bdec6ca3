#include "core/cpu/vec.h"
#include "core/optim/grad_norm_kernels.h"

// Ceiling: memory bandwidth, 4 bytes per element. Squares of f32 are exact in f64; only the additions round.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

double sum_of_squares(const float* x, int64_t n) {
  DVec total{};
  for_each_vec(n, [&](int64_t i, auto lanes) {
    fetch_ahead(x + i);
    DVec v = widen(load(x + i, lanes));
    total += v * v;
  });
  return sum(total);
}

}  // namespace

GradNormKernels grad_norm_kernels() { return {sum_of_squares}; }

}  // namespace ottava::cpu::OTTAVA_ISA
