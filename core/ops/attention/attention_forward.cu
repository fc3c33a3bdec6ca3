#include <limits>

#include "core/ops/attention/flash_attention.cuh"

// Flash attention in bf16 (arXiv:2307.08691). Ceiling: the tensor cores through mma.sync, which reaches about
// 60% of a Hopper's wgmma rate: 4 D FLOPs per visible pair against 4 D bytes of K and V per key and query
// tile. A warp owns 16 or 32 queries; each fragment of K and V that it reads from shared memory then serves 2
// or 4 products. At head dimensions 16 and 32 the ceiling is that of exponentials, one per visible pair and
// 16 of them in a clock of an SM: a product's tile of 16x8 scores takes 32 clocks of a scheduler there, and
// some 26 for instructions.
namespace ottava::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kKeys = 64;
constexpr float kMasked = -std::numeric_limits<float>::infinity();
// Maximum of a row that has seen no key yet: 2^(kMasked - kNoMaximum) is 0, without asking for this case.
constexpr float kNoMaximum = std::numeric_limits<float>::lowest();

struct Arguments {
  const __nv_bfloat16 *qkv, *keys;
  __nv_bfloat16* out;
  float* lse;
  AttentionShape shape;
};

template <int D, int kMTiles>
constexpr int kQueries = 16 * kWarps* kMTiles;
// Keys that are loaded at once: two tiles where these are short, since barriers, copies and addresses cost
// the same at every head dimension.
template <int D>
constexpr int kStage = D <= 32 ? 128 : kKeys;
template <int D, int kMTiles>
constexpr size_t kSharedBytes = (kQueries<D, kMTiles> + 4 * kStage<D>)*Tile<D>::kStride *
                                sizeof(__nv_bfloat16);
// A warp's tiles of queries whose scores are in registers together. At small head dimensions, where
// exponentials and not fragments bound the kernel, more warps are worth more than fragments that serve two
// tiles: 20 warps on an SM instead of 12 at 16.
template <int D, int kMTiles>
constexpr int kTogether = D <= 32 ? 1 : kMTiles;
template <int D>
constexpr int kBlocksOnSm = D == 16   ? 5
                            : D == 32 ? 4
                                      : 0;  // 0: as many as there are

template <int D, int kMTiles>
__global__ void __launch_bounds__(kThreads, kBlocksOnSm<D>) forward_kernel(Arguments a) {
  constexpr int kRows = kQueries<D, kMTiles>, kTile = kStage<D> * Tile<D>::kStride;
  constexpr int kAtOnce = kTogether<D, kMTiles>;
  const AttentionShape& shape = a.shape;
  int batch, kv_head, call_head;
  if (!shape.find(shape.group, batch, kv_head, call_head)) return;
  const int head = shape.first_head + call_head, first_query = shape.first_of_pair_block<kRows>();
  const int end = shape.end;
  const __nv_bfloat16* keys = a.keys + shape.key(batch, kv_head, D);
  const __nv_bfloat16* values = a.keys + shape.value(batch, kv_head, D);

  auto* shared = dynamic_shared<__nv_bfloat16>();
  const Tile<D> queries{shared};
  auto key_tile = [&](int j) { return Tile<D>{shared + kRows * Tile<D>::kStride + (j % 2) * 2 * kTile}; };
  auto value_tile = [&](int j) { return Tile<D>{key_tile(j).data + kTile}; };
  auto load_keys = [&](int j) {
    key_tile(j).template load<kStage<D>, kThreads>(keys, shape.key_row, j * kStage<D>, end);
    value_tile(j).template load<kStage<D>, kThreads>(values, shape.key_row, j * kStage<D>, end);
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4 * 2;
  const int warp_row = warp * 16 * kMTiles;
  const int end_query = min(first_query + kRows, end);
  const int stages = (end_query + kStage<D> - 1) / kStage<D>;
  const int first_stage = shape.first_visible(batch, first_query) / kStage<D>;
  const int last_start = shape.first_visible(batch, end_query - 1);

  float sums[kMTiles][D / 8][4] = {}, row_max[kMTiles][2], row_sum[kMTiles][2] = {};
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) row_max[m][0] = row_max[m][1] = kNoMaximum;
  const float scale = shape.scale * kLog2e;
  const int in_columns = LaneTile<D>::in_columns(), in_rows = LaneTile<D>::in_rows();

  queries.template load<kRows, kThreads>(a.qkv + shape.query(batch, head, D), shape.row, first_query, end);
  load_keys(first_stage);
  cp_async_commit();
  for (int j = first_stage; j < stages; ++j) {
    cp_async_wait<0>();
    __syncthreads();  // stage j has arrived everywhere, and stage j - 1 is not read any more
    if (j + 1 < stages) load_keys(j + 1);
    cp_async_commit();
#pragma unroll 1
    for (int part = 0; part < kStage<D>; part += kKeys) {
      const int first_key = j * kStage<D> + part;
      if (first_key > first_query + warp_row + 16 * kMTiles - 1)
        break;  // later than all of this warp's queries
      const LaneTile<D> k_tile{key_tile(j).at(part, 0) + in_columns};
#pragma unroll
      for (int first = 0; first < kMTiles; first += kAtOnce) {
        const int row = warp_row + first * 16;
        if (kAtOnce < kMTiles && first_key > first_query + row + 16 * kAtOnce - 1) continue;
        float scores[kAtOnce][kKeys / 8][4] = {};
#pragma unroll
        for (int k = 0; k < D; k += 16) {
          uint32_t left[kAtOnce][4];
#pragma unroll
          for (int m = 0; m < kAtOnce; ++m)
            LaneTile<D>{queries.data + in_rows}.left(left[m], row + m * 16, k);
#pragma unroll
          for (int n = 0; n < kKeys / 8; n += 2) {
            uint32_t right[4];
            k_tile.right_transposed(right, n * 8, k);
#pragma unroll
            for (int m = 0; m < kAtOnce; ++m) multiply_add(scores[m][n], scores[m][n + 1], left[m], right);
          }
        }

        // Few tiles are masked, so what that needs is read again for each of them, which costs the others no
        // register.
        if (first_key + kKeys - 1 > first_query + row || first_key < last_start) {
          mask_keys(scores, shape, batch, first_query + row + g, first_key + t, kMasked);
        }
#pragma unroll
        for (int m = 0; m < kAtOnce; ++m) {
          float(&sum)[D / 8][4] = sums[first + m];
          float(&total)[2] = row_sum[first + m];
          float(&base)[2] = row_max[first + m];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float x = scores[m][0][2 * half], y = scores[m][0][2 * half + 1];
#pragma unroll
            for (int n = 1; n < kKeys / 8; ++n) {
              x = fmaxf(x, scores[m][n][2 * half]);
              y = fmaxf(y, scores[m][n][2 * half + 1]);
            }
            x = fmaxf(x, y);
            x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
            x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
            // Kept in the form in which it is subtracted, scaled and rounded, so that if it does not change,
            // the factor is exactly 1.
            x = fmaxf(base[half], x * scale);
            const float shrink = exp2_approx(base[half] - x);
            base[half] = x;
            total[half] *= shrink;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
              sum[n][2 * half] *= shrink;
              sum[n][2 * half + 1] *= shrink;
            }
          }
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              scores[m][n][e] = exp2_approx(fmaf(scores[m][n][e], scale, -base[e / 2]));
              total[e / 2] += scores[m][n][e];
            }
          }
        }
        const LaneTile<D> v_tile{value_tile(j).at(part, 0) + in_rows};
        if constexpr (kAtOnce == 1) {
          multiply_add_rows(sums[first], scores[0], v_tile);
        } else {
          multiply_add_rows(sums, scores, v_tile);
        }
      }
    }
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
      for_each_pair_grid<D>(a.shape, f.batch, ceil_div(f.sequence, kQueries<D, kMTiles>), a.shape.group,
                            a.shape.key_sequence, [&](dim3 grid) {
                              launch(
                                  "attention_forward", stream,
                                  {.grid = grid, .block = kThreads, .shared_bytes = kSharedBytes<D, kMTiles>},
                                  forward_kernel<D, kMTiles>, a);
                            });
    });
  });
}

}  // namespace ottava::cuda
