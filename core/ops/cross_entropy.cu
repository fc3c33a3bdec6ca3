#include <limits>

#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/ops/cross_entropy_kernels.h"

// Ceiling: memory bandwidth. One block per row. Maximum and sum take one pass: each thread keeps a running
// maximum and the sum relative to it (arXiv:1805.02867), so cross_entropy() reads the logits twice, 8 bytes
// per logit, and writes 2 or 4; about 25 FLOPs per logit, two of them exponentials. Rows that fit in a
// block's registers are read once, in one launch; some 45 instructions per logit of a row of 2256 are a
// second ceiling there, about as low as that of 6 bytes. Both ways add in the same order.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 512;
constexpr int kSize = 4;  // logits per load
// Blocks of short rows: each of their threads does what kClasses threads of a block of kBlock do, which
// leaves an SM more rows and fewer sums to put together.
constexpr int kShortBlock = 128, kClasses = kBlock / kShortBlock;
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
    sum = fmaf(sum, __expf(max - b), other.sum * __expf(other.max - b));
    max = larger;
  }
  /// kFirst: nothing has been added yet.
  template <bool kSum, bool kFirst = false, int kWidth>
  __device__ __forceinline__ void add(const float (&x)[kWidth]) {
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < kWidth; ++i) largest = fmaxf(largest, x[i]);
    if (largest > max) {
      if (kSum && !kFirst) sum *= __expf(max - largest);
      max = largest;
    }
    const float b = base(max);
#pragma unroll
    for (int i = 0; kSum && i < kWidth; ++i) sum += __expf(x[i] - b);
  }
  __device__ __forceinline__ Running of_lane(int xor_mask) const {
    return {__shfl_xor_sync(kAllLanes, max, xor_mask), __shfl_xor_sync(kAllLanes, sum, xor_mask)};
  }
};

/// Adds kBlock / 32 parts in shared memory from the first to the last, in every warp. Each lane prepares one
/// part: its maximum is known from those before it, so that what is left in order is one product and sum
/// each.
template <bool kSum>
__device__ __forceinline__ Running add_parts(const float* maxima, const float* sums) {
  constexpr int kParts = kBlock / 32;
  const int part = threadIdx.x % kParts;
  const float mine = maxima[part];
  float max = mine;
#pragma unroll
  for (int offset = 1; offset < kParts; offset *= 2) {
    max = fmaxf(max, __shfl_up_sync(kAllLanes, max, offset, kParts));  // the first lanes get their own
  }
  Running all{__shfl_sync(kAllLanes, max, kParts - 1), sums[0]};
  if (!kSum) return all;
  const float base = Running::base(max), before = __expf(__shfl_up_sync(kAllLanes, max, 1, kParts) - base),
              sum = sums[part] * __expf(mine - base);
#pragma unroll
  for (int p = 1; p < kParts; ++p) {
    all.sum = fmaf(all.sum, __shfl_sync(kAllLanes, before, p), __shfl_sync(kAllLanes, sum, p));
  }
  return all;
}

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
  for_each_pack<kWidth>(logits, valid, [&](const float(&x)[kWidth]) { mine.template add<kSum>(x); });
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) mine.add(mine.of_lane(offset));
  OTTAVA_SHARED(float, maxima, [kBlock / 32]);
  OTTAVA_SHARED(float, sums, [kBlock / 32]);
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = mine.max;
    sums[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  return add_parts<kSum>(maxima, sums);
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

__device__ __forceinline__ void write_losses(const BackwardArguments& b, int64_t row, const Running& r,
                                             float row_target, bool ignored) {
  // The difference first, so that large logits do not swallow the logarithm.
  const double sum = r.sum, difference = static_cast<double>(r.max) - row_target;
  b.losses[row] = ignored ? 0.0f : static_cast<float>(log(sum) + difference);
  if (b.z_losses == nullptr) return;
  const double lse = log(sum) + r.max;
  b.z_losses[row] = ignored ? 0.0f : static_cast<float>(b.z_loss_weight * lse * lse);
}

__global__ void __launch_bounds__(128) loss_kernel(Arguments a, BackwardArguments b) {
  const int64_t row = thread_of_grid(128);
  if (row >= b.rows) return;
  write_losses(b, row, {a.row_max[row], a.row_sum[row]}, a.row_target[row], a.targets[row] == kIgnoreIndex);
}

/// What a row's gradients are made of.
struct Gradient {
  float scale, max, factor;

  __device__ __forceinline__ Gradient(float grad_scale, float z_loss_weight, const Running& r)
      : scale(grad_scale), max(r.max) {
    const float c_2 = 2 * z_loss_weight,
                softmax_scale = c_2 == 0 ? scale : scale * fmaf(c_2, logf(r.sum) + max, 1.0f);
    factor = softmax_scale / r.sum;
  }
  __device__ __forceinline__ float of(float logit, bool is_target, bool counts) const {
    // Rounded by itself for targets too, as where they have no part.
    const float probability = __fmul_rn(__expf(logit - max), factor);
    const float g = is_target ? probability - scale : probability;
    return counts ? g : 0.0f;
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kBlock) gradient_kernel(Arguments a, BackwardArguments b, T* dlogits) {
  const int64_t row = blockIdx.x, packs = a.cols / kWidth;
  const bool ignored = a.targets[row] == kIgnoreIndex;
  const int64_t target = a.targets[row] - a.vocab_begin;
  const Gradient of_row(*b.grad_scale, b.z_loss_weight, {a.row_max[row], a.row_sum[row]});
#pragma unroll 2
  for (int64_t c = threadIdx.x; c < packs; c += kBlock) {
    const auto x = load_pack<float, kWidth>(a.logits, row * packs + c);
    Pack<T, kWidth> gradient;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int64_t column = c * kWidth + i;
      gradient.set(i, of_row.of(x[i], column == target, !ignored && column < a.valid));
    }
    store_pack(dlogits, row * packs + c, gradient);
  }
}

/// Of two sums, lanes without the bit `offset` get the first and lanes with it the second, each with what the
/// lane across had of it.
__device__ __forceinline__ Running add_across(const Running& first, const Running& second, int offset) {
  const bool upper = threadIdx.x & offset;
  const auto either = [](bool which, Running yes, Running no) {
    return Running{which ? yes.max : no.max, which ? yes.sum : no.sum};
  };
  const Running kept = either(upper, second, first), got = either(upper, first, second).of_lane(offset);
  Running sum = either(upper, got, kept);  // in the order of lanes
  sum.add(either(upper, kept, got));
  return sum;
}

/// All steps for a row of at most kShortBlock * kPacks packs, read once.
template <class T, int kPacks, int kBlocks>
__global__ void __launch_bounds__(kShortBlock, kBlocks)
    short_row_kernel(Arguments a, BackwardArguments b, T* dlogits) {
  const int64_t row = blockIdx.x;
  const float* logits = a.logits + row * a.cols;
  const int cols = static_cast<int>(a.cols), valid = static_cast<int>(a.valid);
  const auto column = [](int k) { return static_cast<int>((threadIdx.x + k * kShortBlock) * kSize); };
  Pack<float, kSize> x[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (column(k) < valid) {
      x[k] = load_pack<float, kSize>(logits, threadIdx.x + k * kShortBlock);
    } else {
      x[k] = {};
    }
  }
  // Read before the barrier: dlogits may be the logits.
  const bool ignored = a.targets[row] == kIgnoreIndex;
  const int64_t target = a.targets[row] - a.vocab_begin;
  const float row_target = target >= 0 && target < valid ? logits[target] : 0.0f;
  const float scale = dlogits ? *b.grad_scale : 0.0f;

  Running mine[kClasses];
  const auto add = [&]<bool kFirst>(int k) {
    const int left = valid - column(k);
    if (left <= 0) return;
#pragma unroll
    for (int i = 1; i < kSize; ++i) x[k].values[i] = i < left ? x[k].values[i] : -kInfinity;
    mine[k % kClasses].template add<true, kFirst>(x[k].values);
  };
#pragma unroll
  for (int k = 0; k < kClasses; ++k) add.template operator()<true>(k);
#pragma unroll
  for (int k = kClasses; k < kPacks; ++k) add.template operator()<false>(k);
  static_assert(kClasses == 4);
  // As reduce_row() adds a warp's lanes, for four warps of it: a quarter of the lanes ends up with each.
  Running part = add_across(add_across(mine[0], mine[1], 16), add_across(mine[2], mine[3], 16), 8);
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) part.add(part.of_lane(offset));
  OTTAVA_SHARED(float, maxima, [kBlock / 32]);
  OTTAVA_SHARED(float, sums, [kBlock / 32]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane % 8 == 0) {
    const int kind = lane / 16 + lane / 8 % 2 * 2, at = warp + kind * (kShortBlock / 32);
    maxima[at] = part.max;
    sums[at] = part.sum;
  }
  __syncthreads();
  const Running r = add_parts<true>(maxima, sums);

  if (dlogits) {
    const Gradient of_row(scale, b.z_loss_weight, r);
    const int at = target >= 0 && target < valid ? static_cast<int>(target) : -1,
              counted = ignored ? 0 : valid;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int c = column(k);
      if (c >= cols) break;
      Pack<T, kSize> gradient;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        gradient.set(i, of_row.of(x[k][i], c + i == at, c + i < counted));
      }
      store_pack(dlogits + row * a.cols, threadIdx.x + k * kShortBlock, gradient);
    }
  }
  if (threadIdx.x != kShortBlock - 1) return;  // of the warp with the fewest packs
  a.row_max[row] = r.max;
  a.row_sum[row] = r.sum;
  a.row_target[row] = row_target;
  write_losses(b, row, r, row_target, ignored);
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

BackwardArguments arguments_of(const CrossEntropyBackward& c) {
  return {.losses = pointer<float>(c.losses),
          .z_losses = pointer<float>(c.z_losses),
          .grad_scale = pointer<float>(c.grad_scale),
          .rows = c.losses.numel(),
          .z_loss_weight = c.z_loss_weight};
}

void backward(std::string_view op, Stream& stream, const CrossEntropyBackward& c) {
  const Arguments a = arguments_of(c.forward);
  const BackwardArguments b = arguments_of(c);
  launch(op, stream, one_thread_each(b.rows, 128), loss_kernel, a, b);
  if (c.dlogits.empty()) return;
  dispatch_element(c.dlogits.dtype, op, [&]<class T>() {
    constexpr int kWidth = kPackSize<T>;
    const bool aligned = rows_are_aligned(a.cols * int64_t{sizeof(T)}, c.forward.logits, c.dlogits);
    launch(op, stream, {.grid = grid_of(b.rows), .block = kBlock},
           aligned ? gradient_kernel<T, kWidth> : gradient_kernel<T, 1>, a, b, pointer<T>(c.dlogits));
  });
}

/// The steps in one kernel where rows are short. False: they are not, or not aligned.
bool short_rows(Stream& stream, const CrossEntropyBackward& c) {
  constexpr std::string_view kOp = "cross_entropy";
  constexpr int kFewPacks = 5, kPacks = 16;
  const Arguments a = arguments_of(c.forward);
  if (a.cols > kShortBlock * kPacks * kSize) return false;
  if (!rows_are_aligned(a.cols * int64_t{sizeof(float)}, c.forward.logits, c.dlogits)) return false;
  const DType dtype = c.dlogits.empty() ? DType::f32 : c.dlogits.dtype;
  dispatch_element(dtype, kOp, [&]<class T>() {
    launch(kOp, stream, {.grid = grid_of(c.losses.numel()), .block = kShortBlock},
           a.cols <= kShortBlock * kFewPacks * kSize ? short_row_kernel<T, kFewPacks, 10>
                                                     : short_row_kernel<T, kPacks, 5>,
           a, arguments_of(c), pointer<T>(c.dlogits));
  });
  return true;
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
  if (short_rows(stream, c)) return;
  reduce<Step::all>("cross_entropy", stream, c.forward);
  backward("cross_entropy", stream, c);
}

}  // namespace ottava::cuda
