#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/runtime.h"
#include "core/ops/elementwise_kernels.h"

// Ceiling: memory bandwidth; at most one FLOP per element that is read. cast moves 6 bytes per element, add 3
// elements.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 256, kPacksPerThread = 2;

/// Calls body.run<kSize>(i) on every pack of n elements, then body.run<1>(i) on what does not fill a pack.
template <int kSize, class Body>
__global__ void __launch_bounds__(kBlock) map_kernel(Body body, int64_t n) {
  const int64_t packs = n / kSize;
  const int64_t first = thread_of_grid(kBlock * kPacksPerThread);
#pragma unroll
  for (int k = 0; k < kPacksPerThread; ++k) {
    const int64_t i = first + k * kBlock;
    if (i < packs) {
      body.template run<kSize>(i);
    } else if (const int64_t element = packs * kSize + (i - packs); element < n) {
      body.template run<1>(element);
    }
  }
}

/// kSize elements at once when all pointers are aligned for it.
template <int kSize, class Body>
void map(std::string_view op, Stream& stream, const Body& body, int64_t n, bool aligned) {
  auto blocks = [&](int64_t items) { return grid_of(ceil_div(items, kBlock * kPacksPerThread)); };
  if (aligned) {
    launch(op, stream, {.grid = blocks(n / kSize + n % kSize), .block = kBlock}, map_kernel<kSize, Body>,
           body, n);
  } else {
    launch(op, stream, {.grid = blocks(n), .block = kBlock}, map_kernel<1, Body>, body, n);
  }
}

template <class From, class To>
struct Cast {
  const From* source;
  To* destination;
  template <int kSize>
  __device__ void run(int64_t i) const {
    const auto x = load_pack<From, kSize>(source, i);
    Pack<To, kSize> y;
#pragma unroll
    for (int k = 0; k < kSize; ++k) y.set(k, x[k]);
    store_pack(destination, i, y);
  }
};

template <class T, class B>
struct Add {
  const T* a;
  const B* b;
  T* out;
  template <int kSize>
  __device__ void run(int64_t i) const {
    const auto x = load_pack<T, kSize>(a, i);
    const auto y = load_pack<B, kSize>(b, i);
    Pack<T, kSize> sum;
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum.set(k, x[k] + y[k]);
    store_pack(out, i, sum);
  }
};

template <class T>
struct AddInOrderOf {
  const T* addends[kMostAddends];
  int count;
  T* out;
  template <int kSize>
  __device__ void run(int64_t i) const {
    float sums[kSize] = {};
    for (int a = 0; a < count; ++a) {
      const auto x = load_pack<T, kSize>(addends[a], i);
#pragma unroll
      for (int k = 0; k < kSize; ++k) sums[k] = a == 0 ? x[k] : sums[k] + x[k];
    }
    Pack<T, kSize> sum;
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum.set(k, sums[k]);
    store_pack(out, i, sum);
  }
};

template <class From, class To>
struct CopyColumns {
  const From* source;
  To* destination;
  int64_t columns, source_stride, destination_stride;
  template <int kSize>
  __device__ void run(int64_t i) const {
    const int64_t row = i * kSize / columns, column = i * kSize % columns;
    const auto x = load_pack<From, kSize>(source + row * source_stride + column, 0);
    Pack<To, kSize> y;
#pragma unroll
    for (int k = 0; k < kSize; ++k) y.set(k, x[k]);
    store_pack(destination + row * destination_stride + column, 0, y);
  }
};

// One block: sums here are of a few thousand losses, for which neither a workspace nor a second launch is
// worthwhile.
constexpr int kSumBlock = 512;
template <class T>
__global__ void __launch_bounds__(kSumBlock) sum_kernel(const T* x, float* out, int64_t n) {
  OTTAVA_SHARED(double, sums, [kSumBlock]);
  double sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += kSumBlock) sum += static_cast<double>(to_float(x[i]));
  sums[threadIdx.x] = sum;
  for (int width = kSumBlock / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < static_cast<unsigned>(width)) sums[threadIdx.x] += sums[threadIdx.x + width];
  }
  if (threadIdx.x == 0) *out = static_cast<float>(static_cast<double>(*out) + sums[0]);
}

}  // namespace

void cast(Stream& stream, const Tensor& source, const Tensor& destination) {
  if (source.dtype == destination.dtype) {
    if (source.bytes()) copy(destination.data, source.data, source.bytes(), stream.native());
    return;
  }
  const bool aligned = rows_are_aligned(0, source, destination);
  if (source.dtype == DType::f32) {
    const Cast<float, __nv_bfloat16> body{pointer<float>(source), pointer<__nv_bfloat16>(destination)};
    map<8>("cast", stream, body, source.numel(), aligned);
  } else {
    const Cast<__nv_bfloat16, float> body{pointer<__nv_bfloat16>(source), pointer<float>(destination)};
    map<8>("cast", stream, body, source.numel(), aligned);
  }
}

void fill_zero(Stream& stream, const Tensor& tensor) {
  if (tensor.bytes()) fill_zero(tensor.data, static_cast<size_t>(tensor.bytes()), stream.native());
}

void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto run = [&]<class T, class B>() {
    const Add<T, B> body{pointer<T>(a), pointer<B>(b), pointer<T>(out)};
    map<kPackSize<B>>("add", stream, body, a.numel(), rows_are_aligned(0, a, b, out));
  };
  if (a.dtype != b.dtype) return run.operator()<float, __nv_bfloat16>();
  dispatch_element(a.dtype, "add", [&]<class T>() { run.operator()<T, T>(); });
}

void add_in_order(Stream& stream, const AddInOrder& a) {
  dispatch_element(a.out.dtype, "add_in_order", [&]<class T>() {
    AddInOrderOf<T> body{.count = static_cast<int>(a.addends.size()), .out = pointer<T>(a.out)};
    bool aligned = rows_are_aligned(0, a.out);
    for (size_t i = 0; i < a.addends.size(); ++i) {
      body.addends[i] = pointer<T>(a.addends[i]);
      aligned &= rows_are_aligned(0, a.addends[i]);
    }
    map<kPackSize<T>>("add_in_order", stream, body, a.out.numel(), aligned);
  });
}

void copy_columns(Stream& stream, const MatrixRows& from, const MatrixRows& to) {
  const auto starts_aligned = [](const MatrixRows& m) {
    return m.cols % 8 == 0 && m.stride % 8 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
  };
  dispatch_element(from.dtype, "copy_columns", [&]<class From>() {
    dispatch_element(to.dtype, "copy_columns", [&]<class To>() {
      const CopyColumns<From, To> body{pointer<From>(from), pointer<To>(to), from.cols, from.stride,
                                       to.stride};
      map<8>("copy_columns", stream, body, from.numel(), starts_aligned(from) && starts_aligned(to));
    });
  });
}

void sum_into(Stream& stream, const Tensor& x, const Tensor& out) {
  dispatch_element(x.dtype, "sum_into", [&]<class T>() {
    launch("sum_into", stream, {.grid = 1, .block = kSumBlock}, sum_kernel<T>, pointer<T>(x),
           pointer<float>(out), x.numel());
  });
}

}  // namespace ottava::cuda
