#pragma once

#include "core/ops/attention/flash_attention.cuh"

// What the kernels of attention's backward that own keys do with a step of queries.
namespace ottava::cuda {

/// A warp's keys, and some queries, in shared memory.
struct KeyStep {
  const __nv_bfloat16 *keys, *values;    // the warp's first row
  const __nv_bfloat16 *queries, *douts;  // the step's first row
  const float *lse, *delta;              // of the step's queries
  int first_key, first_query;            // positions
  bool cut;                              // documents hide some of the warp's keys
};

/// Adds the step's share to dK (without the scale) and dV of kMTiles tiles of 16 keys, and leaves the
/// gradients of the scores, of [keys, kStep queries], in `p`, which is zero before. `scale` has log2 e in it.
template <int D, int kMTiles, int kStep>
__device__ __forceinline__ void take_key_step(const KeyStep& s, const AttentionShape& shape, int64_t batch,
                                              float scale, int in_columns, int in_rows,
                                              float (&p)[kMTiles][kStep / 8][4],
                                              float (&dkeys)[kMTiles][D / 8][4],
                                              float (&dvalues)[kMTiles][D / 8][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4 * 2;
  const LaneTile<D> q_columns{s.queries + in_columns}, do_columns{s.douts + in_columns};
  float dp[kMTiles][kStep / 8][4] = {};
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t left_key[kMTiles][4], left_value[kMTiles][4];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      LaneTile<D>{s.keys + in_rows}.left(left_key[m], m * 16, k);
      LaneTile<D>{s.values + in_rows}.left(left_value[m], m * 16, k);
    }
#pragma unroll
    for (int n = 0; n < kStep / 8; n += 2) {
      uint32_t right[4];
      q_columns.right_transposed(right, n * 8, k);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) multiply_add(p[m][n], p[m][n + 1], left_key[m], right);
      do_columns.right_transposed(right, n * 8, k);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) multiply_add(dp[m][n], dp[m][n + 1], left_value[m], right);
    }
  }

#pragma unroll
  for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float lse = s.lse[n * 8 + t + c] * kLog2e;
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& x = p[m][n][2 * half + c];
          x = exp2_approx(fmaf(x, scale, -lse));
        }
      }
    }
  }
  if (s.first_query < s.first_key + 16 * kMTiles - 1 || s.first_query + kStep > shape.end || s.cut) {
#pragma unroll
    for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        // Keys of [start, query], none from `end` on, by one comparison: keys before start wrap around.
        const int query = s.first_query + n * 8 + t + c, visible = shape.first_visible(batch, query);
        const int start = query < shape.end ? visible : query + 1;
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int key = s.first_key + m * 16 + g + 8 * half;
            if (static_cast<unsigned>(key - start) >= static_cast<unsigned>(query + 1 - start)) {
              p[m][n][2 * half + c] = 0;
              dp[m][n][2 * half + c] = 0;  // which may be no number
            }
          }
        }
      }
    }
  }
  multiply_add_rows(dvalues, p, LaneTile<D>{s.douts + in_rows});
#pragma unroll
  for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float delta = s.delta[n * 8 + t + c];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) p[m][n][2 * half + c] *= dp[m][n][2 * half + c] - delta;
      }
    }
  }
  multiply_add_rows(dkeys, p, LaneTile<D>{s.queries + in_rows});
}

}  // namespace ottava::cuda
