#include "core/cuda/elements.cuh"
#include "core/cuda/philox.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/tensor_list.cuh"
#include "core/optim/adamw_kernels.h"

// Ceiling: memory bandwidth: 16 bytes are read and 12 to 14 written per element with f32 states, about 40
// instructions. bf16 states save 8 bytes and pay 10 rounds of Philox per 4 elements. Many tensors share a
// launch.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 256, kSize = 4, kPacksPerThread = 4;
constexpr int64_t kPerBlock = kBlock * kSize * kPacksPerThread;

struct Entry {
  float* master;
  const float *gradient, *bias_correction;
  void *exp_avg, *exp_avg_sq, *compute;
  uint32_t* amax;
  int64_t elements;
  uint64_t first_element, key;
  float weight_decay, lr_factor;
  bool aligned;
};

struct Shared {
  AdamwHyper hyper;
  const float* scalars;
  const int64_t* step;
};

struct Coefficients {
  float beta1, beta2, eps, factor, scale1, scale2, learning_rate, weight_decay;
};

__device__ __forceinline__ float as_state(float x, uint32_t, float*) { return x; }
/// Cut after adding a threshold in [0, 2^16) to the bits; infinities and NaN are stored as they are.
__device__ __forceinline__ __nv_bfloat16 as_state(float x, uint32_t threshold, __nv_bfloat16*) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return __float2bfloat16_rn(x);
  return __ushort_as_bfloat16(static_cast<unsigned short>((bits + threshold) >> 16));
}

__device__ __forceinline__ uint32_t bf16_bits(float x) { return abs_bits(to_float(__float2bfloat16_rn(x))); }

// Every multiply-add is written as one, so that no instance of this code rounds differently from another.
template <class State, class Compute, int kWidth>
__device__ __forceinline__ uint32_t update(const Entry& e, const Coefficients& c, int64_t i,
                                           const uint32_t* words) {
  auto *exp_avg = static_cast<State*>(e.exp_avg), *exp_avg_sq = static_cast<State*>(e.exp_avg_sq);
  auto p = load_pack<float, kWidth>(e.master, i);
  const auto gradient = load_pack<float, kWidth>(e.gradient, i);
  auto m_pack = load_pack<State, kWidth>(exp_avg, i), v_pack = load_pack<State, kWidth>(exp_avg_sq, i);
  Pack<Compute, kWidth> compute;
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float g = gradient[k] * c.factor;
    const float m = fmaf(c.beta1, m_pack[k], (1.0f - c.beta1) * g);
    const float v = fmaf(c.beta2, v_pack[k], (1.0f - c.beta2) * (g * g));
    const float direction = m * c.scale1 / (sqrtf(v * c.scale2) + c.eps);
    p.values[k] = fmaf(-c.learning_rate, fmaf(c.weight_decay, p[k], direction), p[k]);
    m_pack.values[k] = as_state(m, words[k] & 0xffffu, static_cast<State*>(nullptr));
    v_pack.values[k] = as_state(v, words[k] >> 16, static_cast<State*>(nullptr));
    compute.set(k, p[k]);
    amax = max(amax, bf16_bits(p[k]));
  }
  store_pack(e.master, i, p);
  store_pack(exp_avg, i, m_pack);
  store_pack(exp_avg_sq, i, v_pack);
  if (e.compute) store_pack(static_cast<Compute*>(e.compute), i, compute);
  return amax;
}

/// This thread's share of the block's elements.
__device__ __forceinline__ uint32_t weight_amax(const Entry& e, int64_t first) {
  uint32_t amax = 0;
  const int64_t end = first + kPerBlock < e.elements ? first + kPerBlock : e.elements;
  for (int64_t i = first + threadIdx.x; i < end; i += kBlock) amax = max(amax, bf16_bits(e.master[i]));
  return amax;
}

template <class State, class Compute>
__global__ void __launch_bounds__(kBlock) adamw_kernel(TensorList<Entry> list, Shared s) {
  const float factor = s.scalars[kGradientFactor];
  const int which = list.find(blockIdx.x);
  const Entry& e = list.entries[which];
  if (factor == 0) {  // the step is skipped
    if (e.amax) raise_amax(e.amax, weight_amax(e, (blockIdx.x - list.first_block[which]) * kPerBlock));
    return;
  }
  const Coefficients c{.beta1 = s.hyper.beta1,
                       .beta2 = s.hyper.beta2,
                       .eps = s.hyper.eps,
                       .factor = factor,
                       .scale1 = 1.0f / e.bias_correction[0],
                       .scale2 = 1.0f / e.bias_correction[1],
                       .learning_rate = s.scalars[kLearningRate] * e.lr_factor,
                       .weight_decay = e.weight_decay};
  const uint64_t stream = e.key + static_cast<uint64_t>(*s.step) * 0x9E3779B97F4A7C15u;
  const int64_t start = (blockIdx.x - list.first_block[which]) * kPerBlock + threadIdx.x * kSize;
  uint32_t amax = 0;
#pragma unroll
  for (int k = 0; k < kPacksPerThread; ++k) {
    const int64_t i = start + k * (kBlock * kSize);
    if (i >= e.elements) continue;
    uint32_t words[kSize] = {};
    if constexpr (sizeof(State) == 2) {
      // Element g has word g % 4 of block g / 4; a shard may start anywhere in a block.
      const uint64_t g = e.first_element + static_cast<uint64_t>(i);
      const int skip = static_cast<int>(g % 4);
      const PhiloxWords here = philox(s.hyper.seed, stream, g / 4);
      PhiloxWords next{};
      if (skip) next = philox(s.hyper.seed, stream, g / 4 + 1);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int at = w + skip;
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // indices known to the compiler keep the words in registers
          if (at == j) words[w] = here.words[j];
          if (at == j + 4) words[w] = next.words[j];
        }
      }
    }
    if (e.aligned && i + kSize <= e.elements) {
      amax = max(amax, update<State, Compute, kSize>(e, c, i / kSize, words));
    } else {
      for (int j = 0; j < kSize && i + j < e.elements; ++j) {
        amax = max(amax, update<State, Compute, 1>(e, c, i + j, words + j));
      }
    }
  }
  raise_amax(e.amax, amax);
}

Entry entry_of(const AdamwTensor& t) {
  auto aligned = [](const Tensor& x) {
    return reinterpret_cast<uintptr_t>(x.data) % (kSize * size_of(x.dtype)) == 0;
  };
  return {.master = pointer<float>(t.master),
          .gradient = pointer<float>(t.gradient),
          .bias_correction = pointer<float>(t.bias_correction),
          .exp_avg = t.exp_avg.data,
          .exp_avg_sq = t.exp_avg_sq.data,
          .compute = t.compute.data,
          .amax = pointer<uint32_t>(t.amax),
          .elements = t.master.numel(),
          .first_element = static_cast<uint64_t>(t.first_element),
          .key = t.key,
          .weight_decay = t.weight_decay,
          .lr_factor = t.lr_factor,
          .aligned = aligned(t.master) && aligned(t.gradient) && aligned(t.exp_avg) &&
                     aligned(t.exp_avg_sq) && aligned(t.compute)};
}

}  // namespace

void adamw(Stream& stream, const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
           const Tensor& scalars, const Tensor& step) {
  const Shared shared{hyper, pointer<float>(scalars), pointer<int64_t>(step)};
  for (DType state : {DType::f32, DType::bf16}) {
    for (DType compute : {DType::f32, DType::bf16}) {
      std::vector<Entry> entries;
      for (const AdamwTensor& t : tensors) {
        if (t.exp_avg.dtype == state && t.compute.dtype == compute) entries.push_back(entry_of(t));
      }
      dispatch_element(state, "adamw", [&]<class State>() {
        dispatch_element(compute, "adamw", [&]<class Compute>() {
          for_each_list(entries, kPerBlock, [&](const TensorList<Entry>& list, unsigned blocks) {
            launch("adamw", stream, {.grid = blocks, .block = kBlock}, adamw_kernel<State, Compute>, list,
                   shared);
          });
        });
      });
    }
  }
}

}  // namespace ottava::cuda
