#include <limits>

#include "core/ops/attention/flash_attention.cuh"

// Flash attention in bf16 (arXiv:2307.08691). Ceiling: the tensor cores through mma.sync, which reaches about
// 60% of a Hopper's wgmma rate: 4 D FLOPs per visible pair against 4 D bytes of K and V per key and query
// tile. A warp owns 16 or 32 queries; each fragment of K and V that it reads from shared memory then serves 2
// or 4 products.
namespace ottava::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = 64;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct Arguments {
  const __nv_bfloat16 *qkv, *keys;
  __nv_bfloat16* out;
  float* lse;
  AttentionShape shape;
};

template <int D, int kMTiles>
constexpr int kQueries = 16 * kWarps* kMTiles;
template <int D, int kMTiles>
constexpr size_t kSharedBytes = (kQueries<D, kMTiles> + 4 * kKeys) * Tile<D>::kStride * sizeof(__nv_bfloat16);

template <int D, int kMTiles>
__global__ void __launch_bounds__(kThreads) forward_kernel(Arguments a) {
  constexpr int kRows = kQueries<D, kMTiles>, kTile = kKeys * Tile<D>::kStride;
  const AttentionShape& shape = a.shape;
  const int head = shape.first_head + blockIdx.y, kv_head = blockIdx.y / shape.group;
  const int64_t batch = shape.batch();
  const int end = shape.end;
  const int first_query = shape.first_of_block<kRows>();
  const __nv_bfloat16* keys = a.keys + shape.key(batch, kv_head, D);
  const __nv_bfloat16* values = a.keys + shape.value(batch, kv_head, D);

  auto* shared = dynamic_shared<__nv_bfloat16>();
  const Tile<D> queries{shared};
  auto key_tile = [&](int j) { return Tile<D>{shared + kRows * Tile<D>::kStride + (j % 2) * 2 * kTile}; };
  auto value_tile = [&](int j) { return Tile<D>{key_tile(j).data + kTile}; };
  auto load_keys = [&](int j) {
    key_tile(j).template load<kKeys, kThreads>(keys, shape.key_row, j * kKeys, end);
    value_tile(j).template load<kKeys, kThreads>(values, shape.key_row, j * kKeys, end);
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4 * 2;
  const int warp_row = warp * 16 * kMTiles;
  const int end_query = min(first_query + kRows, end);
  const int tiles = (end_query + kKeys - 1) / kKeys;
  const int first_tile = shape.first_visible(batch, first_query) / kKeys;
  const int last_start = shape.first_visible(batch, end_query - 1);

  float sums[kMTiles][D / 8][4] = {}, row_max[kMTiles][2], row_sum[kMTiles][2] = {};
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) row_max[m][0] = row_max[m][1] = kMasked;
  const float scale = shape.scale * kLog2e;

  queries.template load<kRows, kThreads>(a.qkv + shape.query(batch, head, D), shape.row, first_query, end);
  load_keys(first_tile);
  cp_async_commit();
  for (int j = first_tile; j < tiles; ++j) {
    cp_async_wait<0>();
    __syncthreads();  // tile j has arrived everywhere, and tile j - 1 is not read any more
    if (j + 1 < tiles) load_keys(j + 1);
    cp_async_commit();
    const int first_key = j * kKeys;
    if (first_key > first_query + warp_row + 16 * kMTiles - 1)
      continue;  // later than all of this warp's queries

    float scores[kMTiles][kKeys / 8][4] = {};
    const Tile<D> k_tile = key_tile(j);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      uint32_t left[kMTiles][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) queries.left(left[m], warp_row + m * 16, k);
#pragma unroll
      for (int n = 0; n < kKeys / 8; n += 2) {
        uint32_t right[4];
        k_tile.right_transposed(right, n * 8, k);
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) multiply_add(scores[m][n], scores[m][n + 1], left[m], right);
      }
    }

    // Few tiles are masked, so what that needs is read again for each of them, which costs the others no
    // register.
    if (first_key + kKeys - 1 > first_query + warp_row || first_key < last_start) {
      mask_keys(scores, shape, batch, first_query + warp_row + g, first_key + t, kMasked);
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      float largest[2] = {kMasked, kMasked}, base[2];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          largest[e / 2] = fmaxf(largest[e / 2], scores[m][n][e]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& x = largest[half];
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
        // Kept in the form in which it is subtracted, scaled and rounded, so that if it does not change, the
        // factor is exactly 1.
        x = fmaxf(row_max[m][half], x * scale);
        base[half] = x == kMasked ? 0.0f : x;  // a row that has seen no key yet
        const float shrink = exp2_approx(row_max[m][half] - base[half]);
        row_max[m][half] = x;
        row_sum[m][half] *= shrink;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          sums[m][n][2 * half] *= shrink;
          sums[m][n][2 * half + 1] *= shrink;
        }
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[m][n][e] = exp2_approx(scores[m][n][e] * scale - base[e / 2]);
          row_sum[m][e / 2] += scores[m][n][e];
        }
      }
    }

    multiply_add_rows(sums, scores, value_tile(j));
  }

  __nv_bfloat16* out = a.out + shape.out(batch, head, D);
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = row_sum[m][half];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      factors[half] = 1.0f / sum;
      const int query = first_query + warp_row + m * 16 + g + 8 * half;
      if (t == 0 && query < end) {
        a.lse[shape.statistics(batch, head) + query] = (row_max[m][half] + log2f(sum)) * kLn2;
      }
    }
    queries.store(sums[m], factors, warp_row + m * 16, out, shape.out_row, first_query, end);
  }
}

}  // namespace

void flash_forward_bf16(Stream& stream, const AttentionForward& f) {
  Arguments a{pointer<__nv_bfloat16>(f.qkv), keys_of<__nv_bfloat16>(f), pointer<__nv_bfloat16>(f.out),
              pointer<float>(f.lse), attention_shape(f)};
  dispatch_head_dim(f.heads.head_dim, [&]<int D>() {
    dispatch_query_tiles<kSharedBytes<D, 1>, kSharedBytes<D, 2>>(stream, [&]<int kMTiles>() {
      for_each_grid(f.batch, [&](int64_t first, unsigned sequences) {
        a.shape.first_batch = first;
        const dim3 grid(grid_of(ceil_div(f.sequence, kQueries<D, kMTiles>)),
                        grid_of_yz(a.shape.kv_heads * a.shape.group), sequences);
        launch("attention_forward", stream,
               {.grid = grid, .block = kThreads, .shared_bytes = kSharedBytes<D, kMTiles>},
               forward_kernel<D, kMTiles>, a);
      });
    });
  });
}

}  // namespace ottava::cuda
