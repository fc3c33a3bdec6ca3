#include "core/cpu/exponentials.h"
#include "core/cpu/vec.h"
#include "core/ops/cross_entropy_kernels.h"

// Each step reads the logits once; exp is computed twice per logit (sum and gradient), about 20 instructions
// per 16 of them. A row of 128256 logits is 513 KB and fits the L2 cache, so cross_entropy() runs the steps
// row by row.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

constexpr int64_t kBlock =
    4096;  // columns whose sum is made apart: the rounding error stays that of 256 additions

const float* logits_of(const CrossEntropy& a, int64_t i, int64_t cols) {
  return static_cast<const float*>(a.logits.data) + i * cols;
}
/// The row's target among these columns, or -1.
int64_t target_of(const CrossEntropy& a, int64_t i) {
  const int64_t column = static_cast<const int32_t*>(a.targets.data)[i] - a.vocab_begin;
  return column >= 0 && column < a.valid_columns ? column : -1;
}
bool is_ignored(const CrossEntropy& a, int64_t i) {
  return static_cast<const int32_t*>(a.targets.data)[i] == kIgnoreIndex;
}

void row_max(const CrossEntropy& a, Rows rows) {
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const float* logits = logits_of(a, i, rows.cols);
    Vec largest = splat(-__builtin_inff());
    for_each_vec(a.valid_columns, [&](int64_t c, auto lanes) {
      fetch_ahead(logits + c);
      largest = max(largest, keep(load(logits + c, lanes), lanes, -__builtin_inff()));
    });
    static_cast<float*>(a.row_max.data)[i] = max_lane(largest);
  }
}

void row_sum(const CrossEntropy& a, Rows rows) {
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const float* logits = logits_of(a, i, rows.cols);
    const float largest = static_cast<const float*>(a.row_max.data)[i];
    Vec total{};
    for (int64_t begin = 0; begin < a.valid_columns; begin += kBlock) {
      const int64_t left = a.valid_columns - begin;
      Vec part{};
      for_each_vec(left < kBlock ? left : kBlock, [&](int64_t c, auto lanes) {
        part += keep(exp(load(logits + begin + c, lanes) - largest), lanes, 0.0f);
      });
      total += part;
    }
    static_cast<float*>(a.row_sum.data)[i] = sum(total);
    const int64_t target = target_of(a, i);
    static_cast<float*>(a.row_target.data)[i] = target < 0 ? 0.0f : logits[target];
  }
}

template <class T>
void backward(const CrossEntropyBackward& a, int64_t row, float softmax_scale) {
  const int64_t cols = a.forward.logits.shape[1];
  T* gradient = static_cast<T*>(a.dlogits.data) + row * cols;
  if (is_ignored(a.forward, row)) {
    __builtin_memset(static_cast<void*>(gradient), 0, cols * sizeof(T));
    return;
  }
  const float scale = *static_cast<const float*>(a.grad_scale.data);
  const float* logits = logits_of(a.forward, row, cols);
  const float largest = static_cast<const float*>(a.forward.row_max.data)[row];
  const float factor = softmax_scale / static_cast<const float*>(a.forward.row_sum.data)[row];
  const int64_t valid = a.forward.valid_columns, target = target_of(a.forward, row);
  // Taken before the row is written: dlogits may be the logits.
  const float at_target = target < 0 ? 0.0f : logits[target];
  for_each_vec(valid, [&](int64_t c, auto lanes) {
    fetch_target_ahead(gradient + c);
    store(gradient + c, exp(load(logits + c, lanes) - largest) * factor, lanes);
  });
  if (target >= 0) store_partial(gradient + target, exp(splat(at_target) - largest) * factor - scale, 1);
  __builtin_memset(static_cast<void*>(gradient + valid), 0, (cols - valid) * sizeof(T));
}

}  // namespace

CrossEntropyKernels cross_entropy_kernels() { return {row_max, row_sum, {backward<float>, backward<bf16>}}; }

}  // namespace ottava::cpu::OTTAVA_ISA
