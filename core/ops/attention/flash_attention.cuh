#pragma once

#include "core/cuda/elements.cuh"
#include "core/cuda/runtime.h"
#include "core/ops/attention/attention_kernels.h"

// What the attention kernels share: the layout of heads, and tiles of bf16 rows in shared memory with the
// fragments that mma.sync takes from them (arXiv:2205.14135, arXiv:2307.08691).
namespace ottava::cuda {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Queries and keys are named by their positions. Those of queries run from first_query to end. The offsets
/// below count from position 0, although no query lies before first_query.
struct AttentionShape {
  int queries;                    // of a sequence
  int first_query, end;           // positions; keys are read up to `end`
  int row;                        // elements of a row of qkv
  int key_row;                    // of the tensor that holds keys and values
  int out_row;                    // of out
  int heads;                      // of a row of out
  int first_head;                 // of the call
  int kv_heads, group;            // of the call
  int first_column;               // of keys in that tensor
  int64_t key_sequence;           // positions of a sequence that have keys
  const int32_t* document_start;  // null: one document
  float scale;                    // 1 / sqrt(D)
  int64_t first_batch = 0;        // the sequence of blocks with z = 0
  unsigned pairs = 0;             // of a sequence and a key head of the call
  unsigned pairs_together = 1;    // those of a group, whose blocks take turns
  int64_t first_group = 0;        // that of blocks with z = 0

  __device__ __forceinline__ int64_t batch() const { return first_batch + blockIdx.z; }
  /// First of the kTile queries of this block. Blocks whose queries see the most keys come first.
  template <int kTile>
  __device__ __forceinline__ int first_of_block() const {
    return first_query + static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;
  }

  /// What a block of for_each_pair_grid() owns besides a tile: a sequence, one of its key heads, and one of
  /// `of_pair` heads that a pair has, counted within the call. False if there is none.
  __device__ __forceinline__ bool find(unsigned of_pair, int& batch, int& kv_head, int& head) const {
    const unsigned in_group = blockIdx.x / of_pair;
    const unsigned pair = static_cast<unsigned>(first_group + blockIdx.z) * pairs_together + in_group;
    const unsigned sequence = pair / kv_heads;
    batch = static_cast<int>(sequence);
    kv_head = static_cast<int>(pair - sequence * kv_heads);
    head = static_cast<int>(kv_head * of_pair + blockIdx.x - in_group * of_pair);
    return pair < pairs;
  }
  /// First of the kTile queries of this block. Blocks whose queries see the most keys come first.
  template <int kTile>
  __device__ __forceinline__ int first_of_pair_block() const {
    return first_query + static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTile;
  }

  /// Offsets of head h of sequence b at position 0: of a query head in tensors laid out like qkv (query) or
  /// like out (out), and of the call's key head h in keys and values.
  __device__ __forceinline__ int64_t query(int64_t b, int h, int head_dim) const {
    return (b * queries - first_query) * row + int64_t{h} * head_dim;
  }
  __device__ __forceinline__ int64_t key(int64_t b, int h, int head_dim) const {
    return b * key_sequence * key_row + first_column + int64_t{h} * head_dim;
  }
  __device__ __forceinline__ int64_t value(int64_t b, int h, int head_dim) const {
    return key(b, kv_heads + h, head_dim);
  }
  __device__ __forceinline__ int64_t out(int64_t b, int h, int head_dim) const {
    return (b * queries - first_query) * out_row + int64_t{h} * head_dim;
  }
  /// Offset of a row's statistics in [B,H,T].
  __device__ __forceinline__ int64_t statistics(int64_t b, int h) const {
    return (b * heads + h) * queries - first_query;
  }
  /// First position that query t of sequence b sees.
  __device__ __forceinline__ int first_visible(int64_t b, int t) const {
    return document_start && t < end ? document_start[b * queries + t - first_query] : 0;
  }
  /// The first query tile of kTile rows that sees this key.
  template <int kTile>
  __device__ __forceinline__ int first_query_tile(int key) const {
    return key > first_query ? (key - first_query) / kTile : 0;
  }
  /// One past the last query tile that sees a key below `key_end`. Documents' starts never decrease.
  template <int kTile>
  __device__ __forceinline__ int end_of_query_tiles(int64_t b, int first_tile, int key_end) const {
    int low = first_tile, high = (queries + kTile - 1) / kTile;
    while (document_start && low < high) {
      const int middle = (low + high) / 2;
      if (first_visible(b, first_query + middle * kTile) < key_end) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return high;
  }
};

/// Calls launch_grid(grid) for blocks that own a tile and a head, `of_pair` of them for each sequence and key
/// head. As many pairs as fit into `bytes`, of `rows` rows each, take turns, tile by tile: the longest blocks
/// of all come first, and the last ones, during which an SM after another has nothing left to do, are short.
/// 32 MiB: what the L2 cache of a large GPU holds.
template <int D, class F>
void for_each_pair_grid(AttentionShape& shape, int64_t batch, int64_t tiles, int64_t of_pair, int64_t rows,
                        F&& launch_grid, int64_t bytes = 32 << 20) {
  const int64_t pairs = batch * shape.kv_heads, row_bytes = 2 * D * sizeof(__nv_bfloat16);
  const int64_t fitting = bytes / (rows * row_bytes), groups = ceil_div(pairs, fitting > 0 ? fitting : 1);
  shape.pairs = grid_of(pairs);
  shape.pairs_together = grid_of(ceil_div(pairs, groups));
  for_each_grid(ceil_div(pairs, shape.pairs_together), [&](int64_t first, unsigned count) {
    shape.first_group = first;
    launch_grid(dim3(grid_of(shape.pairs_together * of_pair), grid_of_yz(tiles), count));
  });
}

/// The tensor that holds keys and values.
template <class T, class Args>
const T* keys_of(const Args& a) {
  return pointer<T>(a.keys.empty() ? a.qkv : a.keys.values);
}

template <class Args>
AttentionShape attention_shape(const Args& a) {
  const AttentionHeads& h = a.heads;
  const SeparateKeys& apart = a.keys;
  const int64_t group = h.heads / h.kv_heads;
  return {.queries = static_cast<int>(a.sequence),
          .first_query = static_cast<int>(apart.first_query),
          .end = static_cast<int>(apart.first_query + a.sequence),
          .row = static_cast<int>(h.row()),
          .key_row = static_cast<int>(apart.empty() ? h.row() : apart.values.cols()),
          .out_row = static_cast<int>(h.heads * h.head_dim),
          .heads = static_cast<int>(h.heads),
          .first_head = static_cast<int>(apart.first_head * group),
          .kv_heads = static_cast<int>(apart.empty() ? h.kv_heads : apart.values.cols() / (2 * h.head_dim)),
          .group = static_cast<int>(group),
          .first_column = static_cast<int>(apart.empty() ? h.heads * h.head_dim : 0),
          .key_sequence = apart.empty() ? a.sequence : apart.values.rows() / a.batch,
          .document_start = pointer<int32_t>(a.document_start),
          .scale = 1.0f / sqrtf(static_cast<float>(h.head_dim))};
}

/// Calls f.operator()<D>() for the head dimensions that have kernels.
template <class F>
void dispatch_head_dim(int64_t head_dim, F&& f) {
  switch (head_dim) {
    case 16:
      return f.template operator()<16>();
    case 32:
      return f.template operator()<32>();
    case 64:
      return f.template operator()<64>();
    default:
      return f.template operator()<128>();
  }
}

/// Shared memory that every GPU since sm_80 gives a block; sm_86, 89 and 120 give no more.
inline constexpr size_t kSharedEverywhere = 101376;

/// Calls f.operator()<kMTiles>() with the number of tiles of 16 queries that a warp owns: 2, or 1 on a GPU
/// with too little shared memory for that. Only the device decides. A query's sums are made in the same order
/// either way: the larger block only adds, as zeros, key tiles of which the query sees nothing.
template <size_t kSharedOfOne, size_t kSharedOfTwo, class F>
void dispatch_query_tiles(const Stream& stream, F&& f) {
  static_assert(kSharedOfOne <= kSharedEverywhere);
  if constexpr (kSharedOfTwo > kSharedEverywhere) {
    if (static_cast<size_t>(shared_bytes_per_block(stream.device().index)) < kSharedOfTwo)
      return f.template operator()<1>();
  }
  f.template operator()<2>();
}

/// Rows of D bf16 in shared memory. 16 bytes of padding make the stride an odd multiple of 16 bytes, so that
/// the eight rows of a matrix that ldmatrix reads at once lie in different banks.
template <int D>
struct Tile {
  static constexpr int kStride = D + 8, kChunks = D / 8;
  __nv_bfloat16* data;

  __device__ __forceinline__ __nv_bfloat16* at(int row, int column) const {
    return data + row * kStride + column;
  }

  /// Starts copying rows [first, first + kRows) of a matrix; rows from `limit` on become zero.
  template <int kRows, int kThreads>
  __device__ __forceinline__ void load(const __nv_bfloat16* from, int stride, int first, int limit) const {
    const int row = threadIdx.x / kChunks, column = threadIdx.x % kChunks * 8;
    load_own<kRows, kThreads>(from + int64_t{first + row} * stride + column, row, column, stride, first,
                              limit);
  }
  /// The same where the thread's copies begin at `source`, which is its row and column after row `first`.
  template <int kRows, int kThreads>
  __device__ __forceinline__ void load_own(const __nv_bfloat16* source, int row, int column, int stride,
                                           int first, int limit) const {
    constexpr int kRowsAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0);
    // One address that moves on (past the end it is not read): one for each copy would not fit the registers
    // beside the sums.
#pragma unroll
    for (int r = 0; r < kRows; r += kRowsAtOnce) {
      if (kRows % kRowsAtOnce != 0 && row + r >= kRows) break;
      cp_async_16(at(row + r, column), source, first + row + r < limit);
      source += int64_t{kRowsAtOnce} * stride;
    }
  }

  /// Puts a warp's 16 rows of results in place, then writes those below `limit` to global memory, 16 bytes at
  /// a time. No other warp may read these rows of the tile any more.
  __device__ __forceinline__ void store(const float (&sums)[D / 8][4], const float (&factors)[2], int row,
                                        __nv_bfloat16* to, int stride, int first, int limit) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4 * 2;
    __syncwarp(kAllLanes);  // other lanes may still be reading the old contents
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint32_t*>(at(row + g + 8 * half, n * 8 + t)) =
            pack_bf16(sums[n][2 * half] * factors[half], sums[n][2 * half + 1] * factors[half]);
      }
    }
    __syncwarp(kAllLanes);
#pragma unroll
    for (int i = lane; i < 16 * kChunks; i += 32) {
      const int r = i / kChunks, column = i % kChunks * 8;
      if (first + row + r >= limit) continue;
      *reinterpret_cast<uint4*>(to + int64_t{first + row + r} * stride + column) =
          *reinterpret_cast<const uint4*>(at(row + r, column));
    }
  }
};

/// A tile from where a lane reads it: its fragments as operands of mma.sync.
template <int D>
struct LaneTile {
  static constexpr int kStride = Tile<D>::kStride;
  const __nv_bfloat16* data;

  /// Where a lane begins in a tile whose rows are those of the operand, and in one whose rows are columns of
  /// the product.
  static __device__ __forceinline__ int in_rows() {
    const int lane = threadIdx.x % 32;
    return kept(lane % 16 * kStride + lane / 16 * 8);
  }
  static __device__ __forceinline__ int in_columns() {
    const int lane = threadIdx.x % 32;
    return kept((lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8);
  }

  /// Left operand, from in_rows(): 16 rows from `row`, 16 columns from `column`.
  __device__ __forceinline__ void left(uint32_t (&a)[4], int row, int column) const {
    load_matrix_x4<false>(a, data + row * kStride + column);
  }
  /// Right operand from the tile transposed, from in_columns(): its rows [row, row + 16) are columns of the
  /// product; b[0..1] hold the first eight.
  __device__ __forceinline__ void right_transposed(uint32_t (&b)[4], int row, int column) const {
    load_matrix_x4<false>(b, data + row * kStride + column);
  }
  /// Right operand from the tile as it is, from in_rows(): its columns [column, column + 16) are columns of
  /// the product.
  __device__ __forceinline__ void right(uint32_t (&b)[4], int row, int column) const {
    load_matrix_x4<true>(b, data + row * kStride + column);
  }

 private:
  /// Computed once: at small head dimensions the compiler computes an offset again for every fragment, some
  /// 20 instructions beside 190, but not what comes out of a shuffle. Larger ones lack the register.
  static __device__ __forceinline__ int kept(int offset) {
    return D <= 32 ? __shfl_sync(kAllLanes, offset, threadIdx.x % 32) : offset;
  }
};

/// Adds a warp's 16 rows of results, times a factor, to those of an f32 matrix that begin at `to`. Rows from
/// `limit` on are left alone.
template <int D>
__device__ __forceinline__ void add_to_rows(const float (&sums)[D / 8][4], float factor, float* to,
                                            int64_t stride, int limit) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (g + 8 * half >= limit) continue;
    float* row = to + (g + 8 * half) * stride + t;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      row[n * 8] = fmaf(sums[n][2 * half], factor, row[n * 8]);
      row[n * 8 + 1] = fmaf(sums[n][2 * half + 1], factor, row[n * 8 + 1]);
    }
  }
}

/// Two neighbouring 8-column blocks of results as the left operand of the next product, rounded to bf16.
__device__ __forceinline__ void as_left(uint32_t (&a)[4], const float (&x)[4], const float (&y)[4]) {
  a[0] = pack_bf16(x[0], x[1]);
  a[1] = pack_bf16(x[2], x[3]);
  a[2] = pack_bf16(y[0], y[1]);
  a[3] = pack_bf16(y[2], y[3]);
}

/// sums[0..1] += left x the two 8-column halves of right.
__device__ __forceinline__ void multiply_add(float (&first)[4], float (&second)[4], const uint32_t (&left)[4],
                                             const uint32_t (&right)[4]) {
  mma_m16n8k16_bf16(first, left, {right[0], right[1]});
  mma_m16n8k16_bf16(second, left, {right[2], right[3]});
}

/// sums += results, rounded to bf16, x the tile's rows.
template <int D, int kBlocks>
__device__ __forceinline__ void multiply_add_rows(float (&sums)[D / 8][4], const float (&results)[kBlocks][4],
                                                  const LaneTile<D>& tile) {
#pragma unroll
  for (int k = 0; k < kBlocks / 2; ++k) {
    uint32_t left[4];
    as_left(left, results[2 * k], results[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t right[4];
      tile.right(right, k * 16, n * 8);
      multiply_add(sums[n], sums[n + 1], left, right);
    }
  }
}
/// The same for kMTiles tiles of results; each fragment serves all of them.
template <int D, int kMTiles, int kBlocks>
__device__ __forceinline__ void multiply_add_rows(float (&sums)[kMTiles][D / 8][4],
                                                  const float (&results)[kMTiles][kBlocks][4],
                                                  const LaneTile<D>& tile) {
#pragma unroll
  for (int k = 0; k < kBlocks / 2; ++k) {
    uint32_t left[kMTiles][4];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) as_left(left[m], results[m][2 * k], results[m][2 * k + 1]);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t right[4];
      tile.right(right, k * 16, n * 8);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) multiply_add(sums[m][n], sums[m][n + 1], left[m], right);
    }
  }
}

/// Sets results (rows are queries, columns are keys) to `masked` where the query does not see the key.
/// `query`, `key`: of the lane's first result; computing them here from the lane's number costs one kernel 30
/// more registers.
template <int kMTiles, int kBlocks>
__device__ __forceinline__ void mask_keys(float (&results)[kMTiles][kBlocks][4], const AttentionShape& shape,
                                          int64_t batch, int query, int key, float masked) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + m * 16 + 8 * half, start = shape.first_visible(batch, row);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = key + n * 8 + c;
          if (column > row || column < start) results[m][n][2 * half + c] = masked;
        }
      }
    }
  }
}

// The kernels proper, one file each.
void flash_forward_bf16(Stream& stream, const AttentionForward& args);
void flash_backward_bf16(Stream& stream, const AttentionBackward& args, const float* delta);
/// In one kernel; false, and nothing is done, where that cannot fill the GPU or keys are apart.
bool flash_backward_whole_bf16(Stream& stream, const AttentionBackward& args, const float* delta,
                               float* dqueries);
void tiled_forward_f32(Stream& stream, const AttentionForward& args);
void tiled_backward_f32(Stream& stream, const AttentionBackward& args, const float* delta);

}  // namespace ottava::cuda
