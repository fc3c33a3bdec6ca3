#include <limits>

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/ops/cross_entropy_kernels.h"

// Ceiling: memory bandwidth. One block per row. Maximum and sum take one pass: each thread keeps a running
// maximum and the sum relative to it (arXiv:1805.02867), so cross_entropy() reads the logits twice, 8 bytes
// per logit, and writes 2 or 4; about 25 FLOPs per logit, two of them exponentials.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 512;
constexpr int kSize = 4;  // logits per load
constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Step { max, sum, all };

struct Arguments {
  const float* logits;
  const int32_t* targets;
  float *row_max, *row_sum, *row_target;
  int64_t cols, valid, vocab_begin;
};
struct BackwardArguments {
  float *losses, *z_losses;
  const float* grad_scale;
  int64_t rows;
  float z_loss_weight;
};

struct Running {
  float max = -kInfinity, sum = 0;

  // An empty part has maximum -inf; it is then taken relative to 0, or its exponentials would be NaN.
  static __device__ __forceinline__ float base(float max) { return max == -kInfinity ? 0.0f : max; }
  __device__ __forceinline__ void add(const Running& other) {
    const float larger = fmaxf(max, other.max), b = base(larger);
    sum = sum * __expf(max - b) + other.sum * __expf(other.max - b);
    max = larger;
  }
};

/// Calls f(column, logit) on this thread's valid columns.
template <int kWidth, class F>
__device__ __forceinline__ void for_each_pack(const float* logits, int64_t valid, F&& f) {
#pragma unroll 2
  for (int64_t c = threadIdx.x * int64_t{kWidth}; c < valid; c += kBlock * kWidth) {
    const auto pack = load_pack<float, kWidth>(logits, c / kWidth);
    float x[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = c + i < valid ? pack[i] : -kInfinity;
    f(x);
  }
}

/// The row's maximum and sum, the same in all threads.
template <int kWidth, bool kSum>
__device__ __forceinline__ Running reduce_row(const float* logits, int64_t valid) {
  Running mine;
  for_each_pack<kWidth>(logits, valid, [&](const float(&x)[kWidth]) {
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < kWidth; ++i) largest = fmaxf(largest, x[i]);
    if (largest > mine.max) {
      if (kSum) mine.sum *= __expf(mine.max - largest);
      mine.max = largest;
    }
    const float base = Running::base(mine.max);
#pragma unroll
    for (int i = 0; kSum && i < kWidth; ++i) mine.sum += __expf(x[i] - base);
  });
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Running other{__shfl_xor_sync(kAllLanes, mine.max, offset),
                        __shfl_xor_sync(kAllLanes, mine.sum, offset)};
    mine.add(other);
  }
  OTTAVA_SHARED(float, maxima, [kBlock / 32]);
  OTTAVA_SHARED(float, sums, [kBlock / 32]);
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = mine.max;
    sums[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  Running row{maxima[0], sums[0]};
  for (int w = 1; w < kBlock / 32; ++w) row.add({maxima[w], sums[w]});
  return row;
}

template <int kWidth, Step kStep>
__global__ void __launch_bounds__(kBlock) reduce_kernel(Arguments a) {
  const int64_t row = blockIdx.x;
  const float* logits = a.logits + row * a.cols;
  const Running r = reduce_row<kWidth, kStep != Step::max>(logits, a.valid);
  if (threadIdx.x != 0) return;
  if (kStep != Step::sum) a.row_max[row] = r.max;
  if (kStep == Step::max) return;
  // Relative to the maximum over all ranks; exactly r.sum when that is this row's own.
  const float max = kStep == Step::sum ? a.row_max[row] : r.max;
  a.row_sum[row] = r.max == max ? r.sum : r.sum * __expf(r.max - max);
  const int64_t target = a.targets[row] - a.vocab_begin;
  a.row_target[row] = target >= 0 && target < a.valid ? logits[target] : 0.0f;
}

__global__ void __launch_bounds__(128) loss_kernel(Arguments a, BackwardArguments b) {
  const int64_t row = thread_of_grid(128);
  if (row >= b.rows) return;
  // The difference first, so that large logits do not swallow the logarithm.
  const double sum = a.row_sum[row], difference = static_cast<double>(a.row_max[row]) - a.row_target[row];
  const bool ignored = a.targets[row] == kIgnoreIndex;
  b.losses[row] = ignored ? 0.0f : static_cast<float>(log(sum) + difference);
  if (b.z_losses == nullptr) return;
  const double lse = log(sum) + a.row_max[row];
  b.z_losses[row] = ignored ? 0.0f : static_cast<float>(b.z_loss_weight * lse * lse);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kBlock) gradient_kernel(Arguments a, BackwardArguments b, T* dlogits) {
  const int64_t row = blockIdx.x, packs = a.cols / kWidth;
  const bool ignored = a.targets[row] == kIgnoreIndex;
  const int64_t target = a.targets[row] - a.vocab_begin;
  const float scale = *b.grad_scale, max = a.row_max[row], c_2 = 2 * b.z_loss_weight;
  const float softmax_scale = c_2 == 0 ? scale : scale * (1 + c_2 * (logf(a.row_sum[row]) + max));
  const float factor = softmax_scale / a.row_sum[row];
#pragma unroll 2
  for (int64_t c = threadIdx.x; c < packs; c += kBlock) {
    const auto x = load_pack<float, kWidth>(a.logits, row * packs + c);
    Pack<T, kWidth> gradient;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int64_t column = c * kWidth + i;
      const float probability = __expf(x[i] - max) * factor;
      const float g = column == target ? probability - scale : probability;
      gradient.set(i, ignored || column >= a.valid ? 0.0f : g);
    }
    store_pack(dlogits, row * packs + c, gradient);
  }
}

Arguments arguments_of(const CrossEntropy& c) {
  return {pointer<float>(c.logits),
          pointer<int32_t>(c.targets),
          pointer<float>(c.row_max),
          pointer<float>(c.row_sum),
          pointer<float>(c.row_target),
          c.logits.cols(),
          c.valid_columns,
          c.vocab_begin};
}

template <Step kStep>
void reduce(std::string_view op, Stream& stream, const CrossEntropy& c) {
  const bool aligned = rows_are_aligned(c.logits.cols() * int64_t{sizeof(float)}, c.logits);
  launch(op, stream, {.grid = grid_of(c.logits.rows()), .block = kBlock},
         aligned ? reduce_kernel<kSize, kStep> : reduce_kernel<1, kStep>, arguments_of(c));
}

void backward(std::string_view op, Stream& stream, const CrossEntropyBackward& c) {
  const Arguments a = arguments_of(c.forward);
  const BackwardArguments b{.losses = pointer<float>(c.losses),
                            .z_losses = pointer<float>(c.z_losses),
                            .grad_scale = pointer<float>(c.grad_scale),
                            .rows = c.losses.numel(),
                            .z_loss_weight = c.z_loss_weight};
  launch(op, stream, one_thread_each(b.rows, 128), loss_kernel, a, b);
  if (c.dlogits.empty()) return;
  dispatch_element(c.dlogits.dtype, op, [&]<class T>() {
    constexpr int kWidth = kPackSize<T>;
    const bool aligned = rows_are_aligned(a.cols * int64_t{sizeof(T)}, c.forward.logits, c.dlogits);
    launch(op, stream, {.grid = grid_of(b.rows), .block = kBlock},
           aligned ? gradient_kernel<T, kWidth> : gradient_kernel<T, 1>, a, b, pointer<T>(c.dlogits));
  });
}

}  // namespace

void cross_entropy_max(Stream& stream, const CrossEntropy& c) {
  reduce<Step::max>("cross_entropy_max", stream, c);
}
void cross_entropy_sum(Stream& stream, const CrossEntropy& c) {
  reduce<Step::sum>("cross_entropy_sum", stream, c);
}
void cross_entropy_backward(Stream& stream, const CrossEntropyBackward& c) {
  backward("cross_entropy_backward", stream, c);
}
void cross_entropy(Stream& stream, const CrossEntropyBackward& c) {
  reduce<Step::all>("cross_entropy", stream, c.forward);
  backward("cross_entropy", stream, c);
}

}  // namespace ottava::cuda
