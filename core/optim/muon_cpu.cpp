#include "core/cpu/vec.h"
#include "core/optim/muon_kernels.h"

// Ceiling: memory bandwidth; nothing here does more than six operations per element.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class T>
void momentum(const float* gradient, float* momentum, void* update, int64_t n, float factor,
              const MuonHyper& hyper) {
  const float mu = hyper.momentum;
  T* out = static_cast<T*>(update);
  for_each_vec(n, [&](int64_t i, auto lanes) {
    const Vec g = load(gradient + i, lanes) * factor;
    Vec m = load(momentum + i, lanes);
    m += (1.0f - mu) * (g - m);
    store(momentum + i, m, lanes);
    store(out + i, hyper.nesterov ? g + mu * (m - g) : m, lanes);
  });
}

template <class Update, class Compute>
uint32_t apply(const MuonWeightChunk& c) {
  const Update* update = static_cast<const Update*>(c.update);
  Compute* compute = static_cast<Compute*>(c.compute);
  UVec amax{};
  for_each_vec(c.n, [&](int64_t i, auto lanes) {
    Vec p = load(c.master + i, lanes);
    p -= c.learning_rate * (c.weight_decay * p + c.scale * load(update + i, lanes));
    store(c.master + i, p, lanes);
    if (compute) store(compute + i, p, lanes);
    amax = max_bits(amax, abs_bits(rounded_to<bf16>(keep(p, lanes, 0.0f))));
  });
  return max_lane(amax);
}

template <class T>
void combine(void* x, const float* y, int64_t n, float a, float b) {
  T* values = static_cast<T*>(x);
  for_each_vec(n, [&](int64_t i, auto lanes) {
    Vec v = b * load(y + i, lanes);
    if (a != 0) v += a * load(values + i, lanes);
    store(values + i, v, lanes);
  });
}

}  // namespace

MuonKernels muon_kernels() {
  return {.momentum = {momentum<float>, momentum<bf16>},
          .apply_f32 = {apply<float, float>, apply<float, bf16>},
          .apply_bf16 = {apply<bf16, float>, apply<bf16, bf16>},
          .combine = {combine<float>, combine<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
