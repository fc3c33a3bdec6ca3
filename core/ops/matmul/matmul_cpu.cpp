#include "core/cpu/panel_product_kernel.h"
#include "core/cpu/vec.h"
#include "core/ops/matmul/matmul_kernels.h"

// Ceiling of all but the product: memory bandwidth.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class From, class To>
void convert(const From* from, int64_t from_stride, To* to, int64_t to_stride, Rows block) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    for_each_vec(block.cols, [&](int64_t c, auto lanes) {
      store(to + i * to_stride + c, load(from + i * from_stride + c, lanes), lanes);
    });
  }
}

// Rows of an operand are pages apart, where hardware does not prefetch, so the next sixteen are prefetched
// meanwhile.
void widen_transposed(const bf16* from, int64_t from_stride, float* to, int64_t to_stride, Rows block) {
  constexpr int64_t kLine = 64 / sizeof(bf16);
  int64_t i = block.begin;
  for (; i + kLanes <= block.end; i += kLanes) {
    const bf16* rows = from + i * from_stride;
    for (int64_t r = i + kLanes; r < block.end && r < i + 2 * kLanes; ++r) {
      for (int64_t c = 0; c < block.cols; c += kLine) __builtin_prefetch(from + r * from_stride + c);
    }
    int64_t c = 0;
    for (; c + kLanes <= block.cols; c += kLanes)
      transpose_square(rows + c, from_stride, to + c * to_stride + i, to_stride);
    for (; c < block.cols; ++c) {
      for (int r = 0; r < kLanes; ++r)
        to[c * to_stride + i + r] = static_cast<float>(rows[r * from_stride + c]);
    }
  }
  for (; i < block.end; ++i) {
    for (int64_t c = 0; c < block.cols; ++c)
      to[c * to_stride + i] = static_cast<float>(from[i * from_stride + c]);
  }
}

int64_t groups_bytes(int64_t rows, int64_t k) {
  return groups_of(rows) * k * kGroupLanes * static_cast<int64_t>(sizeof(float));
}

// Tiles stay in the L1 cache, so that a line is read only once even if it is read across.
template <class T>
void mirror(const Tensor& x, Rows rows) {
  constexpr int64_t kTile = 32;
  T* values = static_cast<T*>(x.data);
  for (int64_t first = 0; first < rows.end; first += kTile) {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const int64_t end = i < first + kTile ? i : first + kTile;
      for (int64_t j = first; j < end; ++j) values[i * rows.cols + j] = values[j * rows.cols + i];
    }
  }
}

template <class T>
void add_bias(const Tensor& y, const Tensor& bias, Rows rows) {
  const T* b = static_cast<const T*>(bias.data);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    T* row = static_cast<T*>(y.data) + i * rows.cols;
    for_each_vec(rows.cols, [&](int64_t c, auto lanes) {
      store(row + c, load(row + c, lanes) + load(b + c, lanes), lanes);
    });
  }
}

// Sums of 64 rows are added to the total: two short sums lose less than one of all rows.
template <class T>
void bias_gradient(const Tensor& dy, const Tensor& dbias, Columns columns) {
  const T* from = static_cast<const T*>(dy.data) + columns.begin;
  float* to = static_cast<float*>(dbias.data) + columns.begin;
  for_each_vec(columns.end - columns.begin, [&](int64_t c, auto lanes) {
    Vec total = load(to + c, lanes);
    for (int64_t first = 0; first < columns.rows; first += 64) {
      const int64_t last = first + 64 < columns.rows ? first + 64 : columns.rows;
      Vec part{};
      for (int64_t i = first; i < last; ++i) part += load(from + i * columns.stride + c, lanes);
      total += part;
    }
    store(to + c, total, lanes);
  });
}

}  // namespace

MatmulKernels matmul_kernels() {
  return {convert<bf16, float>,
          widen_transposed,
          convert<float, bf16>,
          pack_panel<bf16>,
          pack_transposed_panel<bf16>,
          multiply<Panels::far>,
          multiply<Panels::grouped>,
          pack_groups,
          groups_bytes,
          {mirror<float>, mirror<bf16>},
          {add_bias<float>, add_bias<bf16>},
          {bias_gradient<float>, bias_gradient<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
