#include "core/cpu/philox_vec.h"
#include "core/optim/adamw_kernels.h"

// Ceiling: memory bandwidth. 16 bytes are read and 12 to 14 written per element with f32 states; bf16 states
// save 8 and pay 10 rounds of Philox per 4 elements, about 3 instructions an element.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

constexpr int64_t kPiece = 1024;  // elements whose random words are made at once: 4 KiB of stack

/// The words of elements [first, first + n) of a stream; word(i) is element first + i's.
class RandomWords {
 public:
  void fill(uint64_t seed, uint64_t stream, uint64_t first, int64_t n) {
    skip_ = first % 4;
    for (int64_t i = 0; i < skip_ + n; i += 4 * kLanes) {
      philox_16(seed, stream, first / 4 + (i / 4), words_ + i);
    }
  }
  UVec load(int64_t i) const { return read_lanes<UVec>(words_ + skip_ + i); }

 private:
  uint32_t words_[kPiece + 2 * 4 * kLanes];
  int64_t skip_ = 0;
};

/// v cut to bf16 after adding a threshold in [0, 2^16) to its bits; infinities and NaN are stored as they
/// are.
[[gnu::always_inline]] inline HVec stochastic_bf16(Vec v, UVec threshold) {
  UVec u = bits_as<UVec>(v);
  UVec finite = bits_as<UVec>((u & 0x7f800000u) != 0x7f800000u);
  UVec cut = (u + threshold) >> 16;
  return narrow((finite & cut) | (~finite & widen(to_bf16(v))));
}

template <class Lanes>
void store_state(float* p, Vec v, UVec, Lanes lanes) {
  store(p, v, lanes);
}
template <class Lanes>
void store_state(bf16* p, Vec v, UVec threshold, Lanes lanes) {
  store_bits(p, stochastic_bf16(v, threshold), lanes);
}

template <class T>
constexpr bool kIsBf16 = false;
template <>
constexpr bool kIsBf16<bf16> = true;

template <class State, class Compute>
uint32_t update(const AdamwStep& s, const AdamwChunk& c) {
  const float beta1 = s.hyper.beta1, beta2 = s.hyper.beta2;
  const float scale1 = 1.0f / c.bias_correction1, scale2 = 1.0f / c.bias_correction2;
  UVec amax{};
  RandomWords random;
  for (int64_t begin = 0; begin < c.n; begin += kPiece) {
    const int64_t n = c.n - begin < kPiece ? c.n - begin : kPiece;
    if constexpr (kIsBf16<State>) {
      random.fill(s.hyper.seed, c.random_stream, c.first_element + begin, n);
    }
    float* master = c.master + begin;
    const float* gradient = c.gradient + begin;
    State *exp_avg = static_cast<State*>(c.exp_avg) + begin,
          *exp_avg_sq = static_cast<State*>(c.exp_avg_sq) + begin;
    Compute* compute = c.compute ? static_cast<Compute*>(c.compute) + begin : nullptr;
    for_each_vec(n, [&](int64_t i, auto lanes) {
      Vec g = load(gradient + i, lanes) * s.factor, p = load(master + i, lanes);
      Vec m = beta1 * load(exp_avg + i, lanes) + (1.0f - beta1) * g;
      Vec v = beta2 * load(exp_avg_sq + i, lanes) + (1.0f - beta2) * (g * g);
      Vec step = m * scale1 / (sqrt(v * scale2) + s.hyper.eps) + c.weight_decay * p;
      p -= c.learning_rate * step;
      UVec word{};
      if constexpr (kIsBf16<State>) word = random.load(i);
      store_state(exp_avg + i, m, word & 0xffffu, lanes);
      store_state(exp_avg_sq + i, v, word >> 16, lanes);
      store(master + i, p, lanes);
      if (compute) store(compute + i, p, lanes);
      amax = max_bits(amax, abs_bits(rounded_to<bf16>(keep(p, lanes, 0.0f))));
    });
  }
  return max_lane(amax);
}

uint32_t weight_amax(const float* master, int64_t n) {
  UVec amax{};
  for_each_vec(n, [&](int64_t i, auto lanes) {
    amax = max_bits(amax, abs_bits(rounded_to<bf16>(load(master + i, lanes))));
  });
  return max_lane(amax);
}

}  // namespace

AdamwKernels adamw_kernels() {
  return {
      {update<float, float>, update<float, bf16>}, {update<bf16, float>, update<bf16, bf16>}, weight_amax};
}

}  // namespace ottava::cpu::OTTAVA_ISA
