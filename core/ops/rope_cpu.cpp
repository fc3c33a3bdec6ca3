#include "core/cpu/vec.h"
#include "core/ops/rope_kernels.h"

// Ceiling: memory bandwidth, 4 bytes per bf16 element and 3 FLOPs (2 bytes of a value head, where its amax is
// wanted). The table's row stays in the L1 cache for all heads.

namespace ottava::cpu::OTTAVA_ISA {
namespace {

template <class T>
void rotate_head(T* x, const float* cos, const float* sin, int64_t half, float sign, UVec& amax) {
  for_each_vec(half, [&](int64_t i, auto lanes) {
    Vec a = load(x + i, lanes), b = load(x + half + i, lanes);
    Vec c = load(cos + i, lanes), s = load(sin + i, lanes) * sign;
    store_with_amax(x + i, a * c - b * s, lanes, amax);
    store_with_amax(x + half + i, b * c + a * s, lanes, amax);
  });
}

// D = 16: both halves are one Vec, (a, b) * (cos, cos) + (b, a) * (-sin, sin).
template <class T>
void rotate_heads_of_16(T* x, const float* cos_sin, int64_t heads, float sign, UVec& amax) {
  Vec table = load(cos_sin);
  Vec other = swapped<8>(table);
  const UVec is_lower = bits_as<UVec>(lane_numbers() < 8);
  Vec c = select(is_lower, table, other), s = select(is_lower, -other, table) * sign;
  for (int64_t h = 0; h < heads; ++h, x += 16) {
    Vec v = load(x);
    store_with_amax(x, v * c + swapped<8>(v) * s, Whole{}, amax);
  }
}

template <class T>
uint32_t rotate(const Rope& a, Rows rows) {
  const int64_t head_dim = a.heads.head_dim, half = head_dim / 2, heads = a.heads.heads + a.heads.kv_heads;
  const int32_t* positions = static_cast<const int32_t*>(a.positions.data);
  const float sign = a.inverse ? -1.0f : 1.0f;
  UVec amax{};
  for (int64_t n = rows.begin; n < rows.end; ++n) {
    const int64_t position = positions ? positions[n] : n % a.sequence;
    const float* cos_sin = static_cast<const float*>(a.table.data) + position * head_dim;
    T* x = static_cast<T*>(a.qkv.data) + n * rows.cols;
    // Not 8 KiB ahead, where values may be: they are not rotated.
    fetch(x + 2 * rows.cols, heads * head_dim * static_cast<int64_t>(sizeof(T)));
    if (head_dim == 16) {
      rotate_heads_of_16(x, cos_sin, heads, sign, amax);
    } else {
      for (int64_t h = 0; h < heads; ++h)
        rotate_head(x + h * head_dim, cos_sin, cos_sin + half, half, sign, amax);
    }
    if (!a.amax.data) continue;
    for_each_vec(rows.cols - heads * head_dim, [&](int64_t c, auto lanes) {
      amax = max_bits(amax, abs_bits(load(x + heads * head_dim + c, lanes)));
    });
  }
  return max_lane(amax);
}

}  // namespace

RopeKernels rope_kernels() { return {{rotate<float>, rotate<bf16>}}; }

}  // namespace ottava::cpu::OTTAVA_ISA
