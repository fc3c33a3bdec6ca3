#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/tensor_list.cuh"
#include "core/optim/muon_kernels.h"

// Ceiling: memory bandwidth. Per element muon_momentum moves 14 bytes and muon_apply 12 with bf16 updates and
// compute, muon_combine 8 of bf16. Many tensors share a launch of the first two.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 256, kPerThread = 8;
constexpr int64_t kPerBlock = kBlock * kPerThread;

struct Momentum {
  const float* gradient;
  float* momentum;
  void* update;
  int64_t elements;
};

struct Weight {
  float* master;
  const void* update;
  void* compute;
  uint32_t* amax;
  int64_t elements;
  float weight_decay, lr_factor, scale;
};

/// Calls f(element) on this thread's share of a block's piece of n elements, neighbours by neighbouring
/// threads.
template <class F>
__device__ __forceinline__ void for_each_element(int64_t piece, int64_t n, F&& f) {
  const int64_t start = piece * kPerBlock + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    if (const int64_t i = start + k * kBlock; i < n) f(i);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    momentum_kernel(TensorList<Momentum> list, float mu, bool nesterov, const float* scalars) {
  const int which = list.find(blockIdx.x);
  const Momentum& e = list.entries[which];
  const float factor = scalars[kGradientFactor];
  for_each_element(blockIdx.x - list.first_block[which], e.elements, [&](int64_t i) {
    float u = 0;
    if (factor != 0) {  // else the step is skipped
      // Rounded by itself, with Nesterov's momentum or without.
      const float g = __fmul_rn(e.gradient[i], factor), m = fmaf(1.0f - mu, g - e.momentum[i], e.momentum[i]);
      e.momentum[i] = m;
      u = nesterov ? fmaf(mu, m - g, g) : m;
    }
    static_cast<T*>(e.update)[i] = from_float<T>(u);
  });
}

template <class Update, class Compute>
__global__ void __launch_bounds__(kBlock) apply_kernel(TensorList<Weight> list, const float* scalars) {
  const int which = list.find(blockIdx.x);
  const Weight& e = list.entries[which];
  const bool is_skipped = scalars[kGradientFactor] == 0;
  const float learning_rate = scalars[kLearningRate] * e.lr_factor;
  uint32_t amax = 0;
  for_each_element(blockIdx.x - list.first_block[which], e.elements, [&](int64_t i) {
    float p = e.master[i];
    if (!is_skipped) {
      const float u = to_float(static_cast<const Update*>(e.update)[i]);
      p = fmaf(-learning_rate, fmaf(e.weight_decay, p, e.scale * u), p);
      e.master[i] = p;
      if (e.compute) static_cast<Compute*>(e.compute)[i] = from_float<Compute>(p);
    }
    amax = max(amax, abs_bits(to_float(__float2bfloat16_rn(p))));
  });
  raise_amax(e.amax, amax);
}

template <class T>
__global__ void __launch_bounds__(kBlock) combine_kernel(T* x, float a, const float* y, float b, int64_t n) {
  for_each_element(blockIdx.x, n,
                   [&](int64_t i) { x[i] = from_float<T>(fmaf(a, to_float(x[i]), b * y[i])); });
}

template <class T>
__global__ void __launch_bounds__(kBlock)
    divide_kernel(T* x, const float* y, const double* sum_of_squares, int64_t n) {
  const float factor = static_cast<float>(1 / (sqrt(*sum_of_squares) + 1e-7));
  for_each_element(blockIdx.x, n, [&](int64_t i) { x[i] = from_float<T>(y[i] * factor); });
}

}  // namespace

void muon_momentum(Stream& stream, const std::vector<MuonMomentum>& tensors, const MuonHyper& hyper,
                   const Tensor& scalars) {
  for (DType type : {DType::f32, DType::bf16}) {
    std::vector<Momentum> entries;
    for (const MuonMomentum& t : tensors) {
      if (t.update.dtype != type) continue;
      entries.push_back(
          {pointer<float>(t.gradient), pointer<float>(t.momentum), t.update.data, t.gradient.numel()});
    }
    dispatch_element(type, "muon_momentum", [&]<class T>() {
      for_each_list(entries, kPerBlock, [&](const TensorList<Momentum>& list, unsigned blocks) {
        launch("muon_momentum", stream, {.grid = blocks, .block = kBlock}, momentum_kernel<T>, list,
               hyper.momentum, hyper.nesterov, pointer<float>(scalars));
      });
    });
  }
}

void muon_apply(Stream& stream, const std::vector<MuonWeight>& tensors, const Tensor& scalars) {
  for (DType update : {DType::f32, DType::bf16}) {
    for (DType compute : {DType::f32, DType::bf16}) {
      std::vector<Weight> entries;
      for (const MuonWeight& t : tensors) {
        if (t.update.dtype != update || t.compute.dtype != compute) continue;
        entries.push_back({.master = pointer<float>(t.master),
                           .update = t.update.data,
                           .compute = t.compute.data,
                           .amax = pointer<uint32_t>(t.amax),
                           .elements = t.master.numel(),
                           .weight_decay = t.weight_decay,
                           .lr_factor = t.lr_factor,
                           .scale = t.scale});
      }
      dispatch_element(update, "muon_apply", [&]<class Update>() {
        dispatch_element(compute, "muon_apply", [&]<class Compute>() {
          for_each_list(entries, kPerBlock, [&](const TensorList<Weight>& list, unsigned blocks) {
            launch("muon_apply", stream, {.grid = blocks, .block = kBlock}, apply_kernel<Update, Compute>,
                   list, pointer<float>(scalars));
          });
        });
      });
    }
  }
}

void muon_combine(Stream& stream, const Tensor& x, float a, const Tensor& y, float b) {
  dispatch_element(x.dtype, "muon_combine", [&]<class T>() {
    launch("muon_combine", stream, {.grid = grid_of(ceil_div(x.numel(), kPerBlock)), .block = kBlock},
           combine_kernel<T>, pointer<T>(x), a, pointer<float>(y), b, x.numel());
  });
}

void muon_divide_by_norm(Stream& stream, const Tensor& x, const Tensor& y, const Tensor& sum_of_squares) {
  dispatch_element(x.dtype, "muon_divide_by_norm", [&]<class T>() {
    launch("muon_divide_by_norm", stream, {.grid = grid_of(ceil_div(x.numel(), kPerBlock)), .block = kBlock},
           divide_kernel<T>, pointer<T>(x), pointer<float>(y), pointer<double>(sum_of_squares), x.numel());
  });
}

}  // namespace ottava::cuda
