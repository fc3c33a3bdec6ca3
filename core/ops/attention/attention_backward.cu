#include "core/ops/attention/flash_attention.cuh"

// Backward of flash attention in bf16 (arXiv:2307.08691), deterministic: one kernel owns a tile of keys and
// walks over the queries of all heads of its group, another owns a tile of queries and walks over the keys.
// Scores are computed in both: 7 products instead of 5, and no sum is ever shared between blocks. Ceiling:
// mma.sync and the shared memory that feeds it: in the first kernel a fragment serves two products, in the
// second four.
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
    for (int i = threadIdx.x; i < kRows; i += kThreads) {
      const bool valid = first + i < limit;
      const int64_t from = at + (valid ? first + i : 0);
      cp_async_4(lse + i, a.lse + from, valid);
      cp_async_4(delta + i, a.delta + from, valid);
    }
  }
};

// --- dK and dV: rows of the products are keys, so that P and dS leave one product as the left operand of the
// next.
constexpr int kKeys = 16 * kWarps;
template <int D>
constexpr int kQueryStep = D == 128 ? 32 : 64;  // what fits the registers
template <int D>
constexpr size_t kKeySharedBytes = (2 * kKeys + 4 * kQueryStep<D>)*Tile<D>::kStride * sizeof(__nv_bfloat16) +
                                   4 * kQueryStep<D> * sizeof(float);

template <int D>
__global__ void __launch_bounds__(kThreads) key_kernel(Arguments a) {
  constexpr int kStep = kQueryStep<D>, kTile = kStep * Tile<D>::kStride;
  const AttentionShape& shape = a.shape;
  const int kv_head = blockIdx.y;
  const int64_t batch = shape.batch();
  const int end = shape.end, first_key = static_cast<int>(blockIdx.x) * kKeys;

  auto* shared = dynamic_shared<__nv_bfloat16>();
  const Tile<D> keys{shared}, values{shared + kKeys * Tile<D>::kStride};
  auto* stages = shared + 2 * kKeys * Tile<D>::kStride;
  auto query_tile = [&](int i) { return Tile<D>{stages + (i % 2) * 2 * kTile}; };
  auto dout_tile = [&](int i) { return Tile<D>{query_tile(i).data + kTile}; };
  auto* floats = reinterpret_cast<float*>(stages + 4 * kTile);
  auto statistics = [&](int i) {
    float* at = floats + (i % 2) * 2 * kStep;
    return RowStatistics{at, at + kStep};
  };

  // Steps: for each head of the group, the query tiles that see one of these keys.
  const int first_tile = shape.first_query_tile<kStep>(first_key);
  const int tiles =
      shape.end_of_query_tiles<kStep>(batch, first_tile, min(first_key + kKeys, end)) - first_tile;
  const int steps = tiles * shape.group, end_tile = first_tile + tiles;
  if (steps == 0) return;  // separate keys that none of the call's queries sees
  int head = shape.first_head + kv_head * shape.group,
      tile = first_tile;  // of the next load: counted, since a division takes 20 instructions
  auto load_step = [&](int i) {
    const int query = shape.first_query + tile * kStep;
    query_tile(i).template load<kStep, kThreads>(a.qkv + shape.query(batch, head, D), shape.row, query, end);
    dout_tile(i).template load<kStep, kThreads>(a.dout + shape.out(batch, head, D), shape.out_row, query,
                                                end);
    statistics(i).template load<kStep>(a, shape.statistics(batch, head), query, end);
    if (++tile == end_tile) {
      tile = first_tile;
      ++head;
    }
  };

  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16, g = lane / 4, t = lane % 4 * 2;
  const float scale = shape.scale * kLog2e;
  float dkeys[D / 8][4] = {}, dvalues[D / 8][4] = {};
  keys.template load<kKeys, kThreads>(a.keys + shape.key(batch, kv_head, D), shape.key_row, first_key, end);
  values.template load<kKeys, kThreads>(a.keys + shape.value(batch, kv_head, D), shape.key_row, first_key,
                                        end);
  load_step(0);
  cp_async_commit();
  for (int i = 0, first_query = shape.first_query + first_tile * kStep, next_query; i < steps;
       ++i, first_query = next_query) {
    cp_async_wait<0>();
    __syncthreads();
    next_query = shape.first_query + tile * kStep;
    if (i + 1 < steps) load_step(i + 1);
    cp_async_commit();
    const Tile<D> q_tile = query_tile(i), do_tile = dout_tile(i);
    const RowStatistics rows = statistics(i);

    float p[kStep / 8][4] = {};  // scores, probabilities, then gradients of the scores, of [keys, queries]
    float dp[kStep / 8][4] = {};
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      uint32_t left_key[4], left_value[4];
      keys.left(left_key, row, k);
      values.left(left_value, row, k);
#pragma unroll
      for (int n = 0; n < kStep / 8; n += 2) {
        uint32_t right[4];
        q_tile.right_transposed(right, n * 8, k);
        multiply_add(p[n], p[n + 1], left_key, right);
        do_tile.right_transposed(right, n * 8, k);
        multiply_add(dp[n], dp[n + 1], left_value, right);
      }
    }

#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float lse = rows.lse[n * 8 + t + c] * kLog2e;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = p[n][2 * half + c];
          x = exp2_approx(x * scale - lse);
        }
      }
    }
    if (first_query < first_key + row + 15 || first_query + kStep > end || shape.document_start) {
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int query = first_query + n * 8 + t + c, start = shape.first_visible(batch, query);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int key = first_key + row + g + 8 * half;
            if (key > query || key < start || query >= end) p[n][2 * half + c] = 0;
          }
        }
      }
    }
    multiply_add_rows(dvalues, p, do_tile);
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) p[n][e] *= dp[n][e] - rows.delta[n * 8 + t + e % 2];
    }
    multiply_add_rows(dkeys, p, q_tile);
  }
  if (a.dkeys) {
    const int64_t first = int64_t{first_key + row} * shape.key_row;
    const int limit = end - first_key - row;
    add_to_rows<D>(dkeys, shape.scale, a.dkeys + shape.key(batch, kv_head, D) + first, shape.key_row, limit);
    add_to_rows<D>(dvalues, 1.0f, a.dkeys + shape.value(batch, kv_head, D) + first, shape.key_row, limit);
    return;
  }
  const float of_keys[2] = {shape.scale, shape.scale}, of_values[2] = {1.0f, 1.0f};
  keys.store(dkeys, of_keys, row, a.dqkv + shape.key(batch, kv_head, D), shape.row, first_key, end);
  values.store(dvalues, of_values, row, a.dqkv + shape.value(batch, kv_head, D), shape.row, first_key, end);
}

// --- dQ: rows of the products are queries.
constexpr int kKeyStep = 32;
template <int kMTiles>
constexpr int kQueries = 16 * kWarps* kMTiles;
template <int D, int kMTiles>
constexpr size_t kQuerySharedBytes = (2 * kQueries<kMTiles> + 4 * kKeyStep) * Tile<D>::kStride *
                                     sizeof(__nv_bfloat16);

template <int D, int kMTiles>
__global__ void __launch_bounds__(kThreads) query_kernel(Arguments a) {
  constexpr int kRows = kQueries<kMTiles>, kTile = kKeyStep * Tile<D>::kStride;
  const AttentionShape& shape = a.shape;
  const int head = shape.first_head + blockIdx.y, kv_head = blockIdx.y / shape.group;
  const int64_t batch = shape.batch();
  const int end = shape.end;
  const int first_query = shape.first_of_block<kRows>();

  auto* shared = dynamic_shared<__nv_bfloat16>();
  const Tile<D> queries{shared}, douts{shared + kRows * Tile<D>::kStride};
  auto* stages = shared + 2 * kRows * Tile<D>::kStride;
  auto key_tile = [&](int j) { return Tile<D>{stages + (j % 2) * 2 * kTile}; };
  auto value_tile = [&](int j) { return Tile<D>{key_tile(j).data + kTile}; };
  auto load_keys = [&](int j) {
    key_tile(j).template load<kKeyStep, kThreads>(a.keys + shape.key(batch, kv_head, D), shape.key_row,
                                                  j * kKeyStep, end);
    value_tile(j).template load<kKeyStep, kThreads>(a.keys + shape.value(batch, kv_head, D), shape.key_row,
                                                    j * kKeyStep, end);
  };

  const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * kMTiles, g = lane / 4,
            t = lane % 4 * 2;
  const int end_query = min(first_query + kRows, end);
  const int tiles = (end_query + kKeyStep - 1) / kKeyStep;
  const int first_tile = shape.first_visible(batch, first_query) / kKeyStep;
  const int last_start = shape.first_visible(batch, end_query - 1);
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
  load_keys(first_tile);
  cp_async_commit();
  for (int j = first_tile; j < tiles; ++j) {
    cp_async_wait<0>();
    __syncthreads();
    if (j + 1 < tiles) load_keys(j + 1);
    cp_async_commit();
    const int first_key = j * kKeyStep;
    if (first_key > first_query + warp_row + 16 * kMTiles - 1) continue;

    const Tile<D> k_tile = key_tile(j), v_tile = value_tile(j);
    float ds[kMTiles][kKeyStep / 8][4] = {}, dp[kMTiles][kKeyStep / 8][4] = {};
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      uint32_t left_query[kMTiles][4], left_dout[kMTiles][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        queries.left(left_query[m], warp_row + m * 16, k);
        douts.left(left_dout[m], warp_row + m * 16, k);
      }
#pragma unroll
      for (int n = 0; n < kKeyStep / 8; n += 2) {
        uint32_t right_key[4], right_value[4];
        k_tile.right_transposed(right_key, n * 8, k);
        v_tile.right_transposed(right_value, n * 8, k);
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
          const float p = exp2_approx(ds[m][n][e] * scale - lse[m][e / 2]);
          ds[m][n][e] = p * (dp[m][n][e] - delta[m][e / 2]);
        }
      }
    }
    if (first_key + kKeyStep - 1 > first_query + warp_row || first_key < last_start) {
      mask_keys(ds, shape, batch, first_query + warp_row + g, first_key + t, 0);
    }
    multiply_add_rows(dqueries, ds, k_tile);
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
    for_each_grid(b.batch, [&](int64_t first, unsigned sequences) {
      a.shape.first_batch = first;
      const dim3 per_keys(grid_of(ceil_div(a.shape.end, kKeys)), grid_of_yz(a.shape.kv_heads), sequences);
      launch("attention_backward", stream,
             {.grid = per_keys, .block = kThreads, .shared_bytes = kKeySharedBytes<D>}, key_kernel<D>, a);
      dispatch_query_tiles<kQuerySharedBytes<D, 1>, kQuerySharedBytes<D, 2>>(stream, [&]<int kMTiles>() {
        const dim3 per_queries(grid_of(ceil_div(b.sequence, kQueries<kMTiles>)),
                               grid_of_yz(a.shape.kv_heads * a.shape.group), sequences);
        launch("attention_backward", stream,
               {.grid = per_queries, .block = kThreads, .shared_bytes = kQuerySharedBytes<D, kMTiles>},
               query_kernel<D, kMTiles>, a);
      });
    });
  });
}

}  // namespace ottava::cuda
