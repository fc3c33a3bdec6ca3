#include <limits>

#include "core/ops/attention/flash_attention.cuh"

// Attention in f32, in tiles of 32 x 32 through shared memory, without tensor cores: they would round the
// operands. Ceiling: f32 arithmetic fed from shared memory, about a quarter of its rate. Exists so that an
// f32 run is f32 throughout; bf16 has its own kernels. The backward is cut like theirs: one kernel per tile
// of keys, one per tile of queries.
namespace ottava::cuda {
namespace {

constexpr int kTile = 32, kThreads = 256;
constexpr int kColumns = 8;                   // threads that share a row
constexpr int kPerThread = kTile / kColumns;  // scores of a thread: one row, columns c + 8 i
constexpr float kMasked = -std::numeric_limits<float>::infinity();
static_assert(kThreads == kTile * kColumns);

struct Arguments {
  const float *qkv, *keys, *dout, *delta;
  float *out, *lse, *dqkv;
  float* dkeys;  // null: dK and dV are columns of dqkv
  AttentionShape shape;
};

/// kTile rows of D floats; the odd stride keeps the rows of a column in different banks.
template <int D>
struct Rows {
  static constexpr int kStride = D + 1;
  float* data;
  __device__ __forceinline__ const float* operator[](int row) const { return data + row * kStride; }

  __device__ __forceinline__ void load(const float* from, int stride, int first, int limit) const {
    for (int i = threadIdx.x; i < kTile * D; i += kThreads) {
      const int row = i / D, column = i % D;
      data[row * kStride + column] =
          first + row < limit ? from[int64_t{first + row} * stride + column] : 0.0f;
    }
  }
};
/// kTile x kTile values that all threads need.
struct Square {
  float* data;
  __device__ __forceinline__ float& at(int row, int column) const { return data[row * (kTile + 1) + column]; }
};
template <int D>
constexpr int kRowsFloats = kTile* Rows<D>::kStride;
constexpr int kSquareFloats = kTile * (kTile + 1);

template <int D>
__device__ __forceinline__ void dot_rows(float (&sums)[kPerThread], const Rows<D>& a, int row,
                                         const Rows<D>& b, int column) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) sums[i] = 0;
#pragma unroll 8
  for (int d = 0; d < D; ++d) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) sums[i] = fmaf(a[row][d], b[column + kColumns * i][d], sums[i]);
  }
}

/// sums[i] += sum_j weights(j) * rows[j][column + 8 i]
template <int D, class Weight>
__device__ __forceinline__ void add_rows(float (&sums)[D / kColumns], const Rows<D>& rows, int column,
                                         Weight&& weight) {
#pragma unroll 8
  for (int j = 0; j < kTile; ++j) {
    const float w = weight(j);
#pragma unroll
    for (int i = 0; i < D / kColumns; ++i) sums[i] = fmaf(w, rows[j][column + kColumns * i], sums[i]);
  }
}

template <int D>
__device__ __forceinline__ void store_row(float* to, const float (&sums)[D / kColumns], int column,
                                          float factor) {
#pragma unroll
  for (int i = 0; i < D / kColumns; ++i) to[column + kColumns * i] = sums[i] * factor;
}

template <int D>
__device__ __forceinline__ void add_to_row(float* to, const float (&sums)[D / kColumns], int column,
                                           float factor) {
#pragma unroll
  for (int i = 0; i < D / kColumns; ++i) {
    float& x = to[column + kColumns * i];
    x = fmaf(sums[i], factor, x);
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads) forward_kernel(Arguments a) {
  const AttentionShape& shape = a.shape;
  const int head = shape.first_head + blockIdx.y, kv_head = blockIdx.y / shape.group, end = shape.end;
  const int64_t batch = shape.batch();
  const int row = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  const int first_query = shape.first_of_block<kTile>(), query = first_query + row;
  const int start = shape.first_visible(batch, query);

  auto* shared = dynamic_shared<float>();
  const Rows<D> queries{shared}, keys{shared + kRowsFloats<D>}, values{shared + 2 * kRowsFloats<D>};
  const Square probabilities{shared + 3 * kRowsFloats<D>};
  queries.load(a.qkv + shape.query(batch, head, D), shape.row, first_query, end);

  float sums[D / kColumns] = {}, row_max = kMasked, row_sum = 0;
  const int end_query = min(first_query + kTile, end);
  for (int first_key = shape.first_visible(batch, first_query) / kTile * kTile; first_key < end_query;
       first_key += kTile) {
    __syncthreads();
    keys.load(a.keys + shape.key(batch, kv_head, D), shape.key_row, first_key, end);
    values.load(a.keys + shape.value(batch, kv_head, D), shape.key_row, first_key, end);
    __syncthreads();
    float scores[kPerThread], largest = row_max;
    dot_rows<D>(scores, queries, row, keys, column);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int key = first_key + column + kColumns * i;
      scores[i] = key > query || key < start ? kMasked : scores[i] * shape.scale;
      largest = fmaxf(largest, scores[i]);
    }
#pragma unroll
    for (int offset = kColumns / 2; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    const float base = largest == kMasked ? 0.0f : largest, shrink = expf(row_max - base);
    row_max = largest;
    row_sum *= shrink;
#pragma unroll
    for (int i = 0; i < D / kColumns; ++i) sums[i] *= shrink;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      scores[i] = expf(scores[i] - base);
      row_sum += scores[i];
      probabilities.at(row, column + kColumns * i) = scores[i];
    }
    __syncthreads();
    add_rows<D>(sums, values, column, [&](int j) { return probabilities.at(row, j); });
  }
#pragma unroll
  for (int offset = kColumns / 2; offset > 0; offset /= 2)
    row_sum += __shfl_xor_sync(kAllLanes, row_sum, offset);
  if (query >= end) return;
  store_row<D>(a.out + shape.out(batch, head, D) + int64_t{query} * shape.out_row, sums, column,
               1.0f / row_sum);
  if (column == 0) a.lse[shape.statistics(batch, head) + query] = row_max + logf(row_sum);
}

/// P and dS of one tile, for the thread's scores: rows are queries, columns keys.
template <int D>
__device__ __forceinline__ void score_gradients(const Arguments& a, int64_t batch, int head, int query,
                                                int first_key, const Rows<D>& queries, const Rows<D>& keys,
                                                const Rows<D>& values, const Rows<D>& douts,
                                                float (&p)[kPerThread], float (&ds)[kPerThread]) {
  const int row = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  const bool valid = query < a.shape.end;
  const int64_t at = a.shape.statistics(batch, head) + (valid ? query : a.shape.first_query);
  const float lse = a.lse[at], delta = a.delta[at];
  const int start = a.shape.first_visible(batch, query);
  dot_rows<D>(p, queries, row, keys, column);
  dot_rows<D>(ds, douts, row, values, column);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int key = first_key + column + kColumns * i;
    p[i] = !valid || key > query || key < start ? 0.0f : expf(fmaf(p[i], a.shape.scale, -lse));
    ds[i] = p[i] * (ds[i] - delta);
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads) key_kernel(Arguments a) {
  const AttentionShape& shape = a.shape;
  const int kv_head = blockIdx.y, end = shape.end;
  const int64_t batch = shape.batch();
  const int row = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  const int first_key = static_cast<int>(blockIdx.x) * kTile, key = first_key + row;

  auto* shared = dynamic_shared<float>();
  const Rows<D> queries{shared}, keys{shared + kRowsFloats<D>}, values{shared + 2 * kRowsFloats<D>},
      douts{shared + 3 * kRowsFloats<D>};
  const Square probabilities{shared + 4 * kRowsFloats<D>}, dscores{probabilities.data + kSquareFloats};
  keys.load(a.keys + shape.key(batch, kv_head, D), shape.key_row, first_key, end);
  values.load(a.keys + shape.value(batch, kv_head, D), shape.key_row, first_key, end);

  float dkeys[D / kColumns] = {}, dvalues[D / kColumns] = {};
  const int first_tile = shape.first_query_tile<kTile>(first_key);
  const int tiles = shape.end_of_query_tiles<kTile>(batch, first_tile, min(first_key + kTile, end));
  for (int i = 0; i < shape.group; ++i) {
    const int head = shape.first_head + kv_head * shape.group + i;
    for (int tile = first_tile; tile < tiles; ++tile) {
      const int first_query = shape.first_query + tile * kTile;
      __syncthreads();
      queries.load(a.qkv + shape.query(batch, head, D), shape.row, first_query, end);
      douts.load(a.dout + shape.out(batch, head, D), shape.out_row, first_query, end);
      __syncthreads();
      float p[kPerThread], ds[kPerThread];
      score_gradients<D>(a, batch, head, first_query + row, first_key, queries, keys, values, douts, p, ds);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        probabilities.at(row, column + kColumns * i) = p[i];
        dscores.at(row, column + kColumns * i) = ds[i];
      }
      __syncthreads();
      add_rows<D>(dvalues, douts, column, [&](int j) { return probabilities.at(j, row); });
      add_rows<D>(dkeys, queries, column, [&](int j) { return dscores.at(j, row); });
    }
  }
  if (key >= end) return;
  if (a.dkeys) {
    const int64_t from = int64_t{key} * shape.key_row;
    add_to_row<D>(a.dkeys + shape.key(batch, kv_head, D) + from, dkeys, column, shape.scale);
    add_to_row<D>(a.dkeys + shape.value(batch, kv_head, D) + from, dvalues, column, 1.0f);
    return;
  }
  store_row<D>(a.dqkv + shape.key(batch, kv_head, D) + int64_t{key} * shape.row, dkeys, column, shape.scale);
  store_row<D>(a.dqkv + shape.value(batch, kv_head, D) + int64_t{key} * shape.row, dvalues, column, 1.0f);
}

template <int D>
__global__ void __launch_bounds__(kThreads) query_kernel(Arguments a) {
  const AttentionShape& shape = a.shape;
  const int head = shape.first_head + blockIdx.y, kv_head = blockIdx.y / shape.group, end = shape.end;
  const int64_t batch = shape.batch();
  const int row = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  const int first_query = shape.first_of_block<kTile>(), query = first_query + row;

  auto* shared = dynamic_shared<float>();
  const Rows<D> queries{shared}, keys{shared + kRowsFloats<D>}, values{shared + 2 * kRowsFloats<D>},
      douts{shared + 3 * kRowsFloats<D>};
  const Square dscores{shared + 4 * kRowsFloats<D>};
  queries.load(a.qkv + shape.query(batch, head, D), shape.row, first_query, end);
  douts.load(a.dout + shape.out(batch, head, D), shape.out_row, first_query, end);

  float dqueries[D / kColumns] = {};
  const int end_query = min(first_query + kTile, end);
  for (int first_key = shape.first_visible(batch, first_query) / kTile * kTile; first_key < end_query;
       first_key += kTile) {
    __syncthreads();
    keys.load(a.keys + shape.key(batch, kv_head, D), shape.key_row, first_key, end);
    values.load(a.keys + shape.value(batch, kv_head, D), shape.key_row, first_key, end);
    __syncthreads();
    float p[kPerThread], ds[kPerThread];
    score_gradients<D>(a, batch, head, query, first_key, queries, keys, values, douts, p, ds);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) dscores.at(row, column + kColumns * i) = ds[i];
    __syncthreads();
    add_rows<D>(dqueries, keys, column, [&](int j) { return dscores.at(row, j); });
  }
  if (query >= end) return;
  store_row<D>(a.dqkv + shape.query(batch, head, D) + int64_t{query} * shape.row, dqueries, column,
               shape.scale);
}

dim3 grid_for(int positions, int heads, unsigned sequences) {
  return {grid_of(ceil_div(positions, kTile)), grid_of_yz(heads), sequences};
}

}  // namespace

void tiled_forward_f32(Stream& stream, const AttentionForward& f) {
  Arguments a{.qkv = pointer<float>(f.qkv),
              .keys = keys_of<float>(f),
              .out = pointer<float>(f.out),
              .lse = pointer<float>(f.lse),
              .shape = attention_shape(f)};
  dispatch_head_dim(f.heads.head_dim, [&]<int D>() {
    constexpr size_t kShared = (3 * kRowsFloats<D> + kSquareFloats) * sizeof(float);
    for_each_grid(f.batch, [&](int64_t first, unsigned sequences) {
      a.shape.first_batch = first;
      launch("attention_forward", stream,
             {.grid = grid_for(a.shape.queries, a.shape.kv_heads * a.shape.group, sequences),
              .block = kThreads,
              .shared_bytes = kShared},
             forward_kernel<D>, a);
    });
  });
}

void tiled_backward_f32(Stream& stream, const AttentionBackward& b, const float* delta) {
  Arguments a{.qkv = pointer<float>(b.qkv),
              .keys = keys_of<float>(b),
              .dout = pointer<float>(b.dout),
              .delta = delta,
              .lse = pointer<float>(b.lse),
              .dqkv = pointer<float>(b.dqkv),
              .dkeys = pointer<float>(b.keys.gradients),
              .shape = attention_shape(b)};
  dispatch_head_dim(b.heads.head_dim, [&]<int D>() {
    constexpr size_t kShared = (4 * kRowsFloats<D> + 2 * kSquareFloats) * sizeof(float);
    static_assert(kShared <= kSharedEverywhere);
    for_each_grid(b.batch, [&](int64_t first, unsigned sequences) {
      a.shape.first_batch = first;
      auto go = [&](auto kernel, int positions, int heads) {
        launch("attention_backward", stream,
               {.grid = grid_for(positions, heads, sequences), .block = kThreads, .shared_bytes = kShared},
               kernel, a);
      };
      go(key_kernel<D>, a.shape.end, a.shape.kv_heads);
      go(query_kernel<D>, a.shape.queries, a.shape.kv_heads * a.shape.group);
    });
  });
}

}  // namespace ottava::cuda
