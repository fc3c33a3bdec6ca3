#include "core/cpu/panel_product_kernel.h"
#include "core/cpu/vec.h"
#include "core/ops/attention/attention_kernels.h"
#include "core/ops/attention/score_columns_kernel.h"
#include "core/ops/attention/score_rows_kernel.h"

// Ceiling. Softmax takes 12 instructions for a vector of 16 scores with AVX-512 (maximum 1, scale 1,
// exponential 9, sum 1), two of them per cycle; so does its gradient, which has two more products in place of
// maximum and sum. The exponentials of bf16 tensors take 6. The two products of forward take D cycles for
// such a vector, the five of backward 2.5 D. So of the f32 peak forward can reach D / (D + 6): 73% at head
// dimension 16, 91% at 64, 96% at 128, and backward D / (D + 2.4): 87%, 96%, 98%; of bf16 tensors D / (D +
// 4.5): 78%, 93%, 97%, and D / (D + 1.8): 90%, 97%, 99%. Two of each exponential's instructions take Intel's
// processors twice as long. With AVX2, whose exponential takes 12, D / (D + 7.5) and D / (D + 3) of its peak.
// Where bf16 is multiplied in pairs (tiles/pair_attention_cpu.cpp), forward takes 10 instructions. With AMX,
// four times the f32 peak, it can reach D / (D + 20): 44%, 76%, 86%, backward 57%, 84%, 91%; with AVX512-BF16
// on Zen 4, twice that peak, 62%, 86%, 93% and 73%, 91%, 96%, with 5 cycles for softmax; it
// needs 5.7.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

// So far ahead rows of tensors are fetched, which lie further apart than a processor looks by itself.
constexpr int64_t kRowsAhead = 16;

/// Hidden keys in the steps at the ends: minus infinity before the exponential, so that the loops need no
/// masks.
inline void hide(float* scores, Visible v) {
  for (int64_t j = v.first; j < v.begin; ++j) scores[j] = -__builtin_inff();
  for (int64_t j = v.end; j < v.last; ++j) scores[j] = -__builtin_inff();
}
/// And zero after it, in the whole row.
template <class T>
inline void clear_hidden(T* row, Visible v, int64_t stride) {
  for (int64_t j = 0; j < v.begin; ++j) row[j] = T{};
  for (int64_t j = v.end; j < stride; ++j) row[j] = T{};
}

/// The new maximum of a row, in powers of two, once its hidden scores are minus infinity.
inline float row_maximum(const SoftmaxTile& s, int64_t row, Visible v) {
  float* scores = s.tile.scores + row * s.tile.stride;
  hide(scores, v);
  Vec most = load(scores + v.first), more = load(scores + v.first + kLanes);
  for (int64_t j = v.first + kStep; j < v.last; j += kStep) {
    most = max(most, load(scores + j));
    more = max(more, load(scores + j + kLanes));
  }
  const float top = max_lane(max(most, more)) * s.tile.scale_log2, before = s.row_max[row];
  return top > before ? top : before;
}

void softmax_row(const SoftmaxTile& s, int64_t i, Visible v, float top) {
  const ScoreTile& t = s.tile;
  const float* scores = t.scores + i * t.stride;
  bf16* probabilities = static_cast<bf16*>(s.probabilities) + i * t.stride;
  Vec total{}, more{};
  for (int64_t j = v.first; j < v.last; j += kStep) {
    const Vec p = exp2_for_bf16(load(scores + j) * t.scale_log2 - top);
    const Vec q = exp2_for_bf16(load(scores + j + kLanes) * t.scale_log2 - top);
    total += p;
    more += q;
    store_tile(probabilities + j, p, q);
  }
  clear_hidden(probabilities, v, t.stride);
  const float before = s.row_max[i];
  if (top != before) {
    const float shrink = first_lane(exp2(splat(before - top)));
    s.row_sum[i] *= shrink;
    s.row_max[i] = top;
    float* sums = s.sums + i * s.head_dim;
    for_each_vec(s.head_dim,
                 [&](int64_t c, auto lanes) { store(sums + c, load(sums + c, lanes) * shrink, lanes); });
  }
  s.row_sum[i] += sum(total + more);
}

// The maxima of several rows come first: each is a chain of dependent instructions for which the next row's
// exponentials would wait.
void softmax(const SoftmaxTile& s) {
  constexpr int64_t kTogether = 16;
  const ScoreTile& t = s.tile;
  Visible visible[kTogether];
  float top[kTogether];
  for (int64_t first = 0; first < t.rows; first += kTogether) {
    const int64_t rows = t.rows - first < kTogether ? t.rows - first : kTogether;
    for (int64_t i = 0; i < rows; ++i) {
      const Visible v = visible[i] = visible_keys(t, first + i);
      if (v.begin < v.end) top[i] = row_maximum(s, first + i, v);
    }
    for (int64_t i = 0; i < rows; ++i) {
      if (visible[i].begin < visible[i].end) {
        softmax_row(s, first + i, visible[i], top[i]);
      } else {
        clear_hidden(static_cast<bf16*>(s.probabilities) + (first + i) * t.stride, visible[i], t.stride);
      }
    }
  }
}

void softmax_of_columns(const SoftmaxTile& s) {
  for (int64_t first = 0; first < s.tile.rows; first += kLanes) {
    const Columns columns(s, first);
    s.tile.is_bf16 ? columns.softmax<true>() : columns.softmax<false>();
  }
}

template <class T, bool bf16_tensors>
void gradient_tile(const GradientTile& g) {
  const ScoreTile& t = g.tile;
  for (int64_t i = 0; i < t.rows; ++i) {
    float* scores = t.scores + i * t.stride;
    const float* dprobabilities = g.dprobabilities + i * t.stride;
    T* probabilities = static_cast<T*>(g.probabilities) + i * t.stride;
    T* dscores = static_cast<T*>(g.dscores) + i * t.stride;
    const Visible v = visible_keys(t, i);
    hide(scores, v);
    const int64_t at = i / t.queries * g.head_stride + i % t.queries;
    const float lse_log2 = g.lse[at] * kLog2e, delta = g.delta[at];
    for (int64_t j = v.first; j < v.last; j += kStep) {
      const Vec p = power_of_two<bf16_tensors>(load(scores + j) * t.scale_log2 - lse_log2);
      const Vec q = power_of_two<bf16_tensors>(load(scores + j + kLanes) * t.scale_log2 - lse_log2);
      const Vec dp = load(dprobabilities + j) - delta, dq = load(dprobabilities + j + kLanes) - delta;
      store_tile(probabilities + j, p, q);
      store_tile(dscores + j, p * dp, q * dq);
    }
    clear_hidden(probabilities, v, t.stride);
    clear_hidden(dscores, v, t.stride);
  }
}

template <class T>
void gradient(const GradientTile& g) {
  g.tile.is_bf16 ? gradient_tile<T, true>(g) : gradient_tile<T, false>(g);
}

// Rows are multiples of 16 bytes and mostly shorter than 256: a call of memcpy for each would cost more than
// the copy.
template <class T>
void copy(const void* from, int64_t stride, void* to, Rows block) {
  typedef uint32_t Chunk __attribute__((vector_size(16)));
  const int64_t bytes = block.cols * static_cast<int64_t>(sizeof(T));
  const char* source =
      static_cast<const char*>(from) + block.begin * stride * static_cast<int64_t>(sizeof(T));
  char* target = static_cast<char*>(to);
  for (int64_t i = block.begin; i < block.end; ++i) {
    int64_t at = 0;
    for (; at + 64 <= bytes; at += 64)
      store(reinterpret_cast<float*>(target + at), load(reinterpret_cast<const float*>(source + at)));
    for (; at < bytes; at += 16) {
      Chunk chunk;
      __builtin_memcpy(&chunk, source + at, sizeof chunk);
      __builtin_memcpy(target + at, &chunk, sizeof chunk);
    }
    source += stride * static_cast<int64_t>(sizeof(T));
    target += bytes;
  }
}

void widen(const void* from, int64_t stride, void* to, Rows block) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    const bf16* source = static_cast<const bf16*>(from) + i * stride;
    float* target = static_cast<float*>(to) + (i - block.begin) * block.cols;
    fetch(source + kRowsAhead * stride, block.cols * static_cast<int64_t>(sizeof(bf16)));
    for_each_vec(block.cols,
                 [&](int64_t c, auto lanes) { store(target + c, load(source + c, lanes), lanes); });
  }
}

template <class T>
void pack(const void* from, int64_t stride, int64_t columns, int64_t k, float* to) {
  pack_panel(static_cast<const T*>(from), stride, columns, k, to);
}
template <class T>
void pack_transposed(const void* from, int64_t stride, int64_t columns, int64_t k, float* to) {
  for (int64_t j = 0; j < columns; ++j)
    fetch(static_cast<const T*>(from) + (kPanelColumns + j) * stride, k * static_cast<int64_t>(sizeof(T)));
  pack_transposed_panel(static_cast<const T*>(from), stride, columns, k, to);
}

void transpose(const float* from, int64_t stride, float* to, Rows block) {
  const int64_t whole = block.cols / kLanes * kLanes;
  for (int64_t i = block.begin; i < block.end; i += kLanes) {
    const int64_t rows = block.end - i < kLanes ? block.end - i : kLanes;
    const int64_t squares = rows == kLanes ? whole : 0;
    for (int64_t c = 0; c < squares; c += kLanes)
      transpose_square(from + c * stride + i, stride, to + i * block.cols + c, block.cols);
    for (int64_t r = i; r < i + rows; ++r) {
      for (int64_t c = squares; c < block.cols; ++c) to[r * block.cols + c] = from[c * stride + r];
    }
  }
}

template <class T>
void store_sum(const AttentionKernels::Sum& s, void* to, int64_t to_stride, Rows block) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    const float* from = s.from + i * block.cols;
    T* target = static_cast<T*>(to) + i * to_stride;
    for_each_vec(block.cols, [&](int64_t c, auto lanes) {
      Vec sum = load(from + c, lanes);
      for (int64_t part = 1; part < s.parts; ++part) sum += load(from + part * s.part_stride + c, lanes);
      store(target + c, sum * s.factor, lanes);
    });
  }
}

void add(const float* from, float factor, float* to, int64_t to_stride, Rows block) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    const float* source = from + i * block.cols;
    float* target = to + i * to_stride;
    for_each_vec(block.cols, [&](int64_t c, auto lanes) {
      store(target + c, load(target + c, lanes) + load(source + c, lanes) * factor, lanes);
    });
  }
}

template <class T>
void finish(const SoftmaxTile& s, void* out, int64_t out_stride, float* lse, Rows block) {
  for (int64_t i = block.begin; i < block.end; ++i) {
    const float* sums = s.sums + i * block.cols;
    T* target = static_cast<T*>(out) + (i - block.begin) * out_stride;
    const float factor = 1.0f / s.row_sum[i];
    fetch_target(target + kRowsAhead * out_stride, block.cols * static_cast<int64_t>(sizeof(T)));
    for_each_vec(block.cols,
                 [&](int64_t c, auto lanes) { store(target + c, load(sums + c, lanes) * factor, lanes); });
    lse[i - block.begin] = (s.row_max[i] + __builtin_log2f(s.row_sum[i])) * kLn2;
  }
}

template <class T>
void delta(const AttentionBackward& a, float* delta, Rows tokens, Rows of) {
  const int64_t heads = a.heads.heads, d = tokens.cols;
  for (int64_t n = tokens.begin; n < tokens.end; ++n) {
    const int64_t b = n / a.sequence, position = n % a.sequence;
    for (int64_t h = of.begin; h < of.end; ++h) {
      const T* out = static_cast<const T*>(a.out.data) + (n * heads + h) * d;
      const T* dout = static_cast<const T*>(a.dout.data) + (n * heads + h) * d;
      Vec products{};
      for_each_vec(d,
                   [&](int64_t c, auto lanes) { products += load(out + c, lanes) * load(dout + c, lanes); });
      delta[(b * heads + h) * a.sequence + position] = sum(products);
    }
  }
}

// Ceiling: memory bandwidth, the cache is read once per head. Blocks of keys keep the rescaling of the sums
// rare.
template <class T>
void decode(const AttentionDecode& a, int64_t sequence, int64_t head) {
  constexpr int64_t kBlock = 64;
  const int64_t d = a.heads.head_dim, kv = head / (a.heads.heads / a.heads.kv_heads),
                stride = a.heads.kv_heads * d;
  const int64_t capacity = a.keys.shape[1];
  const T* q = static_cast<const T*>(a.q.data) + (sequence * a.heads.heads + head) * d;
  const T* keys = static_cast<const T*>(a.keys.data) + sequence * capacity * stride + kv * d;
  const T* values = static_cast<const T*>(a.values.data) + sequence * capacity * stride + kv * d;
  const float scale_log2 = kLog2e / __builtin_sqrtf(static_cast<float>(d));
  float sums[kMaxHeadDim] = {}, scores[kBlock], row_max = -__builtin_inff(), row_sum = 0;
  for (int64_t first = 0; first < a.length; first += kBlock) {
    const int64_t count = first + kBlock < a.length ? kBlock : a.length - first;
    float top = row_max;
    for (int64_t j = 0; j < count; ++j) {
      Vec dot{};
      for_each_vec(d, [&](int64_t c, auto lanes) {
        dot += load(q + c, lanes) * load(keys + (first + j) * stride + c, lanes);
      });
      scores[j] = sum(dot) * scale_log2;
      top = scores[j] > top ? scores[j] : top;
    }
    const float shrink = first_lane(exp2(splat(row_max - top)));
    row_max = top;
    row_sum *= shrink;
    for (int64_t c = 0; c < d; ++c) sums[c] *= shrink;
    for_each_vec(
        count, [&](int64_t j, auto lanes) { store(scores + j, exp2(load(scores + j, lanes) - top), lanes); });
    for (int64_t j = 0; j < count; ++j) {
      const float p = scores[j];
      row_sum += p;
      for_each_vec(d, [&](int64_t c, auto lanes) {
        store(sums + c, load(sums + c, lanes) + load(values + (first + j) * stride + c, lanes) * p, lanes);
      });
    }
  }
  T* out = static_cast<T*>(a.out.data) + (sequence * a.heads.heads + head) * d;
  const float factor = 1.0f / row_sum;
  for_each_vec(d, [&](int64_t c, auto lanes) { store(out + c, load(sums + c, lanes) * factor, lanes); });
}

}  // namespace

AttentionKernels attention_kernels() {
  return {{copy<float>, copy<bf16>},
          widen,
          {pack<float>, pack<bf16>},
          {pack_transposed<float>, pack_transposed<bf16>},
          multiply<Panels::near>,
          softmax,
          softmax_of_columns,
          {gradient<float>, gradient<bf16>},
          transpose,
          {store_sum<float>, store_sum<bf16>},
          add,
          {finish<float>, finish<bf16>},
          {delta<float>, delta<bf16>},
          {decode<float>, decode<bf16>}};
}

}  // namespace ottava::cpu::OTTAVA_ISA
