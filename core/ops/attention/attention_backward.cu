#include "core/ops/attention/key_step.cuh"

// Backward of flash attention in bf16 (arXiv:2307.08691), deterministic: one kernel owns a tile of keys and
// walks over the queries of all heads of its group, another owns a tile of queries and walks over the keys.
// Scores are computed in both: 7 products instead of 5, and no sum is ever shared between blocks. Ceiling:
// mma.sync and the shared memory that feeds it: in the first kernel a fragment serves two products, in the
// second four. At head dimensions 16 and 32 it is that of exponentials, one per visible pair in each kernel.
namespace ottava::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

struct Arguments {
  const __nv_bfloat16 *qkv, *keys, *dout;
  const float *lse, *delta;
  __nv_bfloat16* dqkv;
  float* dkeys;  // null: dK and dV are columns of dqkv
  AttentionShape shape;
};

/// Statistics of kRows queries beside their tile.
struct RowStatistics {
  float *lse, *delta;

  template <int kRows>
  __device__ __forceinline__ void load(const Arguments& a, int64_t at, int first, int limit) const {
#pragma unroll
    for (int r = 0; r < kRows; r += kThreads) {
      const int i = r + threadIdx.x;
      if (kRows % kThreads != 0 && i >= kRows) break;
      const bool valid = first + i < limit;
      const int64_t from = at + (valid ? first + i : 0);
      cp_async_4(lse + i, a.lse + from, valid);
      cp_async_4(delta + i, a.delta + from, valid);
    }
  }
};

// --- dK and dV: rows of the products are keys, so that P and dS leave one product as the left operand of the
// next.
// Small head dimensions leave registers for two tiles of keys, which share what a step reads of queries; and
// their steps are short, so several of them are loaded at once.
template <int D>
constexpr int kKeyTiles = D <= 32 ? 2 : 1;
template <int D>
constexpr int kKeys = 16 * kWarps* kKeyTiles<D>;
template <int D>
constexpr int kQueryStep = D == 32   ? 16
                           : D == 64 ? 64
                                     : 32;  // what fits the registers
template <int D>
constexpr int kQueryStage = D == 16   ? 128
                            : D == 32 ? 64
                                      : kQueryStep<D>;
template <int D>
constexpr size_t kKeySharedBytes = (2 * kKeys<D> + 4 * kQueryStage<D>)*Tile<D>::kStride *
                                       sizeof(__nv_bfloat16) +
                                   4 * kQueryStage<D> * sizeof(float);
template <int D>
constexpr int kKeyBlocksOnSm = D == 16   ? 4
                               : D <= 64 ? 3
                                         : 0;  // 0: as many as there are

template <int D>
__global__ void __launch_bounds__(kThreads, kKeyBlocksOnSm<D>) key_kernel(Arguments a) {
  constexpr int kStep = kQueryStep<D>, kStage = kQueryStage<D>, kTile = kStage * Tile<D>::kStride;
  constexpr int kMTiles = kKeyTiles<D>;
  const AttentionShape& shape = a.shape;
  int batch, kv_head, call_head;
  if (!shape.find(1, batch, kv_head, call_head)) return;
  const int end = shape.end, first_key = static_cast<int>(blockIdx.y) * kKeys<D>;

  auto* shared = dynamic_shared<__nv_bfloat16>();
  const Tile<D> keys{shared}, values{shared + kKeys<D> * Tile<D>::kStride};
  auto* stages = shared + 2 * kKeys<D> * Tile<D>::kStride;
  auto query_tile = [&](int i) { return Tile<D>{stages + (i % 2) * 2 * kTile}; };
  auto dout_tile = [&](int i) { return Tile<D>{query_tile(i).data + kTile}; };
  auto* floats = reinterpret_cast<float*>(stages + 4 * kTile);
  auto statistics = [&](int i) {
    float* at = floats + (i % 2) * 2 * kStage;
    return RowStatistics{at, at + kStage};
  };

  // For each head of the group, the stages of queries that see one of these keys.
  const int first_tile = shape.first_query_tile<kStage>(first_key);
  const int tiles =
      shape.end_of_query_tiles<kStage>(batch, first_tile, min(first_key + kKeys<D>, end)) - first_tile;
  const int all_stages = tiles * shape.group, end_tile = first_tile + tiles;
  if (all_stages == 0) return;  // separate keys that none of the call's queries sees
  int head = shape.first_head + kv_head * shape.group,
      tile = first_tile;  // of the next load: counted, since a division takes 20 instructions
  auto load_stage = [&](int i) {
    const int query = shape.first_query + tile * kStage;
    query_tile(i).template load<kStage, kThreads>(a.qkv + shape.query(batch, head, D), shape.row, query, end);
    dout_tile(i).template load<kStage, kThreads>(a.dout + shape.out(batch, head, D), shape.out_row, query,
                                                 end);
    statistics(i).template load<kStage>(a, shape.statistics(batch, head), query, end);
    if (++tile == end_tile) {
      tile = first_tile;
      ++head;
    }
  };

  const int row = threadIdx.x / 32 * 16 * kMTiles;
  const int in_columns = LaneTile<D>::in_columns(), in_rows = LaneTile<D>::in_rows();
  const float scale = shape.scale * kLog2e;
  float dkeys[kMTiles][D / 8][4] = {}, dvalues[kMTiles][D / 8][4] = {};
  keys.template load<kKeys<D>, kThreads>(a.keys + shape.key(batch, kv_head, D), shape.key_row, first_key,
                                         end);
  values.template load<kKeys<D>, kThreads>(a.keys + shape.value(batch, kv_head, D), shape.key_row, first_key,
                                           end);
  load_stage(0);
  cp_async_commit();
  for (int i = 0, first_of_stage = shape.first_query + first_tile * kStage, next; i < all_stages;
       ++i, first_of_stage = next) {
    cp_async_wait<0>();
    __syncthreads();
    next = shape.first_query + tile * kStage;
    if (i + 1 < all_stages) load_stage(i + 1);
    cp_async_commit();
    // Documents hide some of this warp's keys.
    const bool cut = shape.first_visible(batch, min(first_of_stage + kStage, end) - 1) > first_key + row;
    // A step whose queries all come before this warp's keys is left out.
    int part = 0;
    if constexpr (kStep < kStage) part = max(0, first_key + row - first_of_stage) / kStep * kStep;
#pragma unroll 1
    for (; part < kStage; part += kStep) {
      const int first_query = first_of_stage + part;
      float p[kMTiles][kStep / 8][4] = {};
      take_key_step<D, kMTiles, kStep>({.keys = keys.at(row, 0),
                                        .values = values.at(row, 0),
                                        .queries = query_tile(i).at(part, 0),
                                        .douts = dout_tile(i).at(part, 0),
                                        .lse = statistics(i).lse + part,
                                        .delta = statistics(i).delta + part,
                                        .first_key = first_key + row,
                                        .first_query = first_query,
                                        .cut = cut},
                                       shape, batch, scale, in_columns, in_rows, p, dkeys, dvalues);
    }
  }
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    const int at = row + m * 16;
    if (a.dkeys) {
      const int64_t first = int64_t{first_key + at} * shape.key_row;
      const int limit = end - first_key - at;
      add_to_rows<D>(dkeys[m], shape.scale, a.dkeys + shape.key(batch, kv_head, D) + first, shape.key_row,
                     limit);
      add_to_rows<D>(dvalues[m], 1.0f, a.dkeys + shape.value(batch, kv_head, D) + first, shape.key_row,
                     limit);
      continue;
    }
    const float of_keys[2] = {shape.scale, shape.scale}, of_values[2] = {1.0f, 1.0f};
    keys.store(dkeys[m], of_keys, at, a.dqkv + shape.key(batch, kv_head, D), shape.row, first_key, end);
    values.store(dvalues[m], of_values, at, a.dqkv + shape.value(batch, kv_head, D), shape.row, first_key,
                 end);
  }
}

// --- dQ: rows of the products are queries.
constexpr int kKeyStep = 32;
// Keys that are loaded at once.
template <int D>
constexpr int kKeyStage = D == 16   ? 128
                          : D == 32 ? 64
                                    : kKeyStep;
template <int kMTiles>
constexpr int kQueries = 16 * kWarps* kMTiles;
template <int D, int kMTiles>
constexpr size_t kQuerySharedBytes = (2 * kQueries<kMTiles> + 4 * kKeyStage<D>)*Tile<D>::kStride *
                                     sizeof(__nv_bfloat16);
template <int D>
constexpr int kQueryBlocksOnSm = D == 16   ? 5
                                 : D == 32 ? 4
                                           : 0;

template <int D, int kMTiles>
__global__ void __launch_bounds__(kThreads, kQueryBlocksOnSm<D>) query_kernel(Arguments a) {
  constexpr int kRows = kQueries<kMTiles>, kStage = kKeyStage<D>, kTile = kStage * Tile<D>::kStride;
  const AttentionShape& shape = a.shape;
  int batch, kv_head, call_head;
  if (!shape.find(shape.group, batch, kv_head, call_head)) return;
  const int head = shape.first_head + call_head, first_query = shape.first_of_pair_block<kRows>();
  const int end = shape.end;

  auto* shared = dynamic_shared<__nv_bfloat16>();
  const Tile<D> queries{shared}, douts{shared + kRows * Tile<D>::kStride};
  auto* stages = shared + 2 * kRows * Tile<D>::kStride;
  auto key_tile = [&](unsigned j) { return Tile<D>{stages + (j % 2) * 2 * kTile}; };
  auto value_tile = [&](unsigned j) { return Tile<D>{key_tile(j).data + kTile}; };
  const int first_stage = shape.first_visible(batch, first_query) / kStage;
  const int own_row = threadIdx.x / Tile<D>::kChunks, own_column = threadIdx.x % Tile<D>::kChunks * 8;
  // Moves on from stage to stage: what addresses are made of otherwise does not fit the registers at D = 32.
  const __nv_bfloat16* next = a.keys + shape.key(batch, kv_head, D) +
                              int64_t{first_stage * kStage + own_row} * shape.key_row + own_column;
  auto load_keys = [&](int j) {
    const auto load = [&](const Tile<D>& tile, const __nv_bfloat16* source) {
      tile.template load_own<kStage, kThreads>(source, own_row, own_column, shape.key_row, j * kStage, end);
    };
    load(key_tile(j), next);
    load(value_tile(j), next + shape.kv_heads * D);
    next += int64_t{kStage} * shape.key_row;
  };

  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * kMTiles, g = lane / 4,
            t = lane % 4 * 2;
  const int end_query = min(first_query + kRows, end);
  const int all_stages = (end_query + kStage - 1) / kStage;
  const int last_start = shape.first_visible(batch, end_query - 1);
  const int in_columns = LaneTile<D>::in_columns(), in_rows = LaneTile<D>::in_rows();
  const float scale = shape.scale * kLog2e;
  float dqueries[kMTiles][D / 8][4] = {}, lse[kMTiles][2], delta[kMTiles][2];
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    for (int half = 0; half < 2; ++half) {
      const int query = min(first_query + warp_row + m * 16 + g + 8 * half, end - 1);
      lse[m][half] = a.lse[shape.statistics(batch, head) + query] * kLog2e;
      delta[m][half] = a.delta[shape.statistics(batch, head) + query];
    }
  }

  queries.template load<kRows, kThreads>(a.qkv + shape.query(batch, head, D), shape.row, first_query, end);
  douts.template load<kRows, kThreads>(a.dout + shape.out(batch, head, D), shape.out_row, first_query, end);
  load_keys(first_stage);
  cp_async_commit();
  for (int j = first_stage; j < all_stages; ++j) {
    cp_async_wait<0>();
    __syncthreads();
    if (j + 1 < all_stages) load_keys(j + 1);
    cp_async_commit();
#pragma unroll 1
    for (int part = 0; part < kStage; part += kKeyStep) {
      const int first_key = j * kStage + part;
      if (first_key > first_query + warp_row + 16 * kMTiles - 1) break;

      const LaneTile<D> k_columns{key_tile(j).at(part, 0) + in_columns};
      const LaneTile<D> v_columns{value_tile(j).at(part, 0) + in_columns};
      float ds[kMTiles][kKeyStep / 8][4] = {}, dp[kMTiles][kKeyStep / 8][4] = {};
#pragma unroll
      for (int k = 0; k < D; k += 16) {
        uint32_t left_query[kMTiles][4], left_dout[kMTiles][4];
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          LaneTile<D>{queries.data + in_rows}.left(left_query[m], warp_row + m * 16, k);
          LaneTile<D>{douts.data + in_rows}.left(left_dout[m], warp_row + m * 16, k);
        }
#pragma unroll
        for (int n = 0; n < kKeyStep / 8; n += 2) {
          uint32_t right_key[4], right_value[4];
          k_columns.right_transposed(right_key, n * 8, k);
          v_columns.right_transposed(right_value, n * 8, k);
#pragma unroll
          for (int m = 0; m < kMTiles; ++m) {
            multiply_add(ds[m][n], ds[m][n + 1], left_query[m], right_key);
            multiply_add(dp[m][n], dp[m][n + 1], left_dout[m], right_value);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kKeyStep / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float p = exp2_approx(fmaf(ds[m][n][e], scale, -lse[m][e / 2]));
            ds[m][n][e] = p * (dp[m][n][e] - delta[m][e / 2]);
          }
        }
      }
      if (first_key + kKeyStep - 1 > first_query + warp_row || first_key < last_start) {
        mask_keys(ds, shape, batch, first_query + warp_row + g, first_key + t, 0);
      }
      multiply_add_rows(dqueries, ds, LaneTile<D>{key_tile(j).at(part, 0) + in_rows});
    }
  }
  const float factors[2] = {shape.scale, shape.scale};
  __nv_bfloat16* out = a.dqkv + shape.query(batch, head, D);
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    queries.store(dqueries[m], factors, warp_row + m * 16, out, shape.row, first_query, end);
  }
}

}  // namespace

void flash_backward_bf16(Stream& stream, const AttentionBackward& b, const float* delta) {
  Arguments a{.qkv = pointer<__nv_bfloat16>(b.qkv),
              .keys = keys_of<__nv_bfloat16>(b),
              .dout = pointer<__nv_bfloat16>(b.dout),
              .lse = pointer<float>(b.lse),
              .delta = delta,
              .dqkv = pointer<__nv_bfloat16>(b.dqkv),
              .dkeys = pointer<float>(b.keys.gradients),
              .shape = attention_shape(b)};
  dispatch_head_dim(b.heads.head_dim, [&]<int D>() {
    static_assert(kKeySharedBytes<D> <= kSharedEverywhere);
    for_each_pair_grid<D>(
        a.shape, b.batch, ceil_div(a.shape.end, kKeys<D>), 1, b.sequence * a.shape.group, [&](dim3 grid) {
          launch("attention_backward", stream,
                 {.grid = grid, .block = kThreads, .shared_bytes = kKeySharedBytes<D>}, key_kernel<D>, a);
        });
    dispatch_query_tiles<kQuerySharedBytes<D, 1>, kQuerySharedBytes<D, 2>>(stream, [&]<int kMTiles>() {
      for_each_pair_grid<D>(
          a.shape, b.batch, ceil_div(b.sequence, kQueries<kMTiles>), a.shape.group, a.shape.key_sequence,
          [&](dim3 grid) {
            launch("attention_backward", stream,
                   {.grid = grid, .block = kThreads, .shared_bytes = kQuerySharedBytes<D, kMTiles>},
                   query_kernel<D, kMTiles>, a);
          });
    });
  });
}

}  // namespace ottava::cuda
