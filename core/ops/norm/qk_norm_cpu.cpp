#include "core/ops/norm/qk_norm_kernels.h"
#include "core/ops/norm/rms_norm_row.h"

// Ceiling: memory bandwidth for D >= 64; for D = 16 the horizontal sum of each head's only vector.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class T>
void forward(const QkNormForward& a, Rows rows) {
  const int64_t dim = a.heads.head_dim, queries = a.heads.heads, heads = queries + a.heads.kv_heads;
  UVec amax{};
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const T* qkv = static_cast<const T*>(a.qkv.data) + n * rows.cols;
    T* out = static_cast<T*>(a.out.data) + n * rows.cols;
    float* rstd = static_cast<float*>(a.rstd.data) + n * heads;
    for (int64_t h = 0; h < heads; ++h) {
      const T* weight = static_cast<const T*>(h < queries ? a.weight_q.data : a.weight_k.data);
      rstd[h] = reciprocal_rms(sum_of_squares(qkv + h * dim, dim), dim, a.eps);
      normalise_row(qkv + h * dim, weight, rstd[h], out + h * dim, dim, amax);
    }
    if (out != qkv) {
      __builtin_memcpy(static_cast<void*>(out + heads * dim), qkv + heads * dim,
                       (a.heads.kv_heads * dim) * sizeof(T));
    }
  }
}

template <class T>
uint32_t backward(const QkNormBackward& a, Rows rows, float* partial) {
  const int64_t dim = a.heads.head_dim, queries = a.heads.heads, heads = queries + a.heads.kv_heads;
  UVec amax{};
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t start = n * rows.cols + h * dim;
      T* gradient = static_cast<T*>(a.dqkv.data) + start;
      norm_row_backward<T>({.dy = gradient,
                            .h = static_cast<const T*>(a.qkv.data) + start,
                            .weight = static_cast<const T*>(h < queries ? a.weight_q.data : a.weight_k.data),
                            .through = nullptr,
                            .dx = gradient,
                            .dweight = h < queries ? partial : partial + dim},
                           static_cast<const float*>(a.rstd.data)[n * heads + h], dim, amax);
    }
    if (!a.amax.data) continue;
    const T* values = static_cast<const T*>(a.dqkv.data) + n * rows.cols + heads * dim;
    for_each_vec(rows.cols - heads * dim,
                 [&](int64_t c, auto lanes) { amax = max_bits(amax, abs_bits(load(values + c, lanes))); });
  }
  return max_lane(amax);
}

}  // namespace

QkNormKernels qk_norm_kernels() {
  return {{forward<float>, forward<bf16>}, {backward<float>, backward<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
