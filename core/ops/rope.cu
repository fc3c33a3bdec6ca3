#include "core/cuda/elements.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/row_part.cuh"
#include "core/ops/rope_kernels.h"

// Ceiling: memory bandwidth: query and key heads are read and written once (4 bytes per bf16 element), 3
// FLOPs on each; value heads are read where the amax is wanted. A block, or a team of its threads where heads
// are few or short, rotates one token, so that its row of the table is read from memory once and then from
// the L1 cache.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 128;

template <class T>
struct Arguments {
  T* qkv;
  const float* table;
  const int32_t* positions;  // null: token modulo sequence
  int64_t tokens, row, sequence;
  int heads, head_dim;  // heads: those that turn, queries and keys
  float direction;      // 1, or -1 for the inverse
  uint32_t* amax;
};

template <class T, int kSize, class Team>
__global__ void __launch_bounds__(kBlock) rope_kernel(Arguments<T> a, Team teams) {
  using P = Pack<T, kSize>;
  const int64_t token = teams.row();
  const bool exists = Team::kWhole || token < a.tokens;
  const int64_t position = !exists ? 0 : a.positions ? a.positions[token] : token % a.sequence;
  const int half = a.head_dim / 2, packs = half / kSize, items = exists ? a.heads * packs : 0;
  const float* cosines = a.table + position * a.head_dim;
  uint32_t amax = 0;
  for (int item = teams.member(); item < items; item += teams.size()) {
    const int pack = item % packs;
    T* low = a.qkv + token * a.row + (item / packs) * a.head_dim;
    P x = load_pack<T, kSize>(low, pack), y = load_pack<T, kSize>(low + half, pack);
    const auto c = load_pack<float, kSize>(cosines, pack), s = load_pack<float, kSize>(cosines + half, pack);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float sine = s[i] * a.direction, x_i = x[i], y_i = y[i];
      x.set(i, fmaf(x_i, c[i], -(y_i * sine)));
      y.set(i, fmaf(x_i, sine, y_i * c[i]));
      amax = max(amax, max(abs_bits(x[i]), abs_bits(y[i])));
    }
    store_pack(low, pack, x);
    store_pack(low + half, pack, y);
  }
  if (!a.amax) return;
  const int64_t rotated = int64_t{a.heads} * a.head_dim, others = exists ? (a.row - rotated) / kSize : 0;
  const T* values = a.qkv + token * a.row + rotated;
  for (int pack = teams.member(); pack < others; pack += teams.size()) {
    amax = max(amax, largest_bits(load_pack<T, kSize>(values, pack)));
  }
  raise_amax(a.amax, amax);
}

}  // namespace

void rope(Stream& stream, const Rope& r) {
  dispatch_element(r.qkv.dtype, "rope", [&]<class T>() {
    const Arguments<T> a{.qkv = pointer<T>(r.qkv),
                         .table = pointer<float>(r.table),
                         .positions = pointer<int32_t>(r.positions),
                         .tokens = r.qkv.rows(),
                         .row = r.heads.row(),
                         .sequence = r.sequence,
                         .heads = static_cast<int>(r.heads.heads + r.heads.kv_heads),
                         .head_dim = static_cast<int>(r.heads.head_dim),
                         .direction = r.inverse ? -1.0f : 1.0f,
                         .amax = pointer<uint32_t>(r.amax)};
    dispatch_pack<T>(
        r.heads.head_dim / 2,
        [&]<int kSize>() {
          dispatch_teams<kBlock>(a.heads * (r.heads.head_dim / 2 / kSize), [&]<class Team>(Team teams) {
            launch("rope", stream, teams.shape(a.tokens), rope_kernel<T, kSize, Team>, a, teams);
          });
        },
        r.qkv, r.table);
  });
}

}  // namespace ottava::cuda
