#include "core/ops/attention/key_step.cuh"

// Backward of flash attention in bf16 at head dimension 16, in one kernel: a block owns the whole sequence of
// a key head, walks over its tiles of keys and for each over the queries that see it. Ceiling: exponentials,
// one per visible pair and 16 of them in a clock of an SM, as in the two kernels of attention_backward.cu,
// which compute each twice (and 7 products instead of 5). dQ stays in f32 in the workspace, read and written
// once for each tile of 256 keys, and is summed in the same order as there, so bits are the same.
namespace ottava::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kBlocksOnSm = 2;
constexpr int kMTiles = 2, kWarpKeys = 16 * kMTiles, kKeys = kWarps * kWarpKeys;
constexpr int kStep = 16, kStage = 8 * kWarps;  // queries: of the registers; that are loaded at once
constexpr int kPairStride = kStage + 8;         // of dS in shared memory

struct Arguments {
  const __nv_bfloat16 *qkv, *dout;
  const float *lse, *delta;
  __nv_bfloat16* dqkv;
  float4* dqueries;  // of each head, eight queries and lane
  AttentionShape shape;
};

template <int D>
constexpr size_t kSharedBytes = (2 * kKeys + 4 * kStage) * Tile<D>::kStride * sizeof(__nv_bfloat16) +
                                2 * kKeys* kPairStride * sizeof(__nv_bfloat16) + 4 * kStage * sizeof(float);

template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksOnSm) whole_kernel(Arguments a) {
  static_assert(D == 16, "dQ of eight queries is one product's tile");
  constexpr int kTile = kStage * Tile<D>::kStride;
  const AttentionShape& shape = a.shape;
  const int kv_head = blockIdx.x;
  const int64_t batch = shape.batch();
  const int end = shape.end;

  auto* shared = dynamic_shared<__nv_bfloat16>();
  const Tile<D> keys{shared}, values{shared + kKeys * Tile<D>::kStride};
  auto* stages = shared + 2 * kKeys * Tile<D>::kStride;
  auto* all_pairs = stages + 4 * kTile;  // dS of [keys, queries of the stage], of two stages
  auto* floats = reinterpret_cast<float*>(all_pairs + 2 * kKeys * kPairStride);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp * kWarpKeys, g = lane / 4,
            t = lane % 4 * 2;
  const int in_columns = LaneTile<D>::in_columns(), in_rows = LaneTile<D>::in_rows();
  const float scale = shape.scale * kLog2e;
  const int first_head = shape.first_head + kv_head * shape.group;
  const bool of_dout = threadIdx.x >= kThreads / 2;
  const int copied_row = threadIdx.x % (kThreads / 2) / 2, copied_column = threadIdx.x % 2 * 8;
  const int copied_to = (of_dout ? kTile : 0) + copied_row * Tile<D>::kStride + copied_column;
  const int stride = of_dout ? shape.out_row : shape.row;
  const int stages_of_sequence = (shape.queries + kStage - 1) / kStage;

  int end_before = 0;  // one past the last stage that sees the tile of keys before
  for (int first_key = 0; first_key < end; first_key += kKeys) {
    const int first_stage = first_key / kStage;
    const int end_stage = shape.end_of_query_tiles<kStage>(batch, first_stage, min(first_key + kKeys, end));
    const int count = (end_stage - first_stage) * shape.group;
    int head = first_head, next = first_stage;  // of the next load
    // A thread copies the same 16 bytes of each stage's queries or dO, and one of its statistics.
    const __nv_bfloat16* from = nullptr;
    const float* from_statistics = nullptr;
    auto begin_head = [&] {
      const int64_t query = int64_t{first_stage} * kStage + copied_row;
      from = (of_dout ? a.dout + shape.out(batch, head, D) : a.qkv + shape.query(batch, head, D)) +
             query * stride + copied_column;
      from_statistics = (threadIdx.x < kStage ? a.lse : a.delta) + shape.statistics(batch, head) +
                        first_stage * kStage + threadIdx.x % kStage;
    };
    auto load_stage = [&](int i) {
      const int query = next * kStage;
      cp_async_16(stages + (i % 2) * 2 * kTile + copied_to, from, query + copied_row < end);
      if (threadIdx.x < 2 * kStage)
        cp_async_4(floats + (i % 2) * 2 * kStage + threadIdx.x, from_statistics,
                   query + static_cast<int>(threadIdx.x % kStage) < end);
      from += int64_t{kStage} * stride;
      from_statistics += kStage;
      if (++next == end_stage && i + 1 < count) {
        next = first_stage;
        ++head;
        begin_head();
      }
    };
    begin_head();

    float dkeys[kMTiles][D / 8][4] = {}, dvalues[kMTiles][D / 8][4] = {};
    __syncthreads();  // the tile before is written
    keys.template load<kKeys, kThreads>(a.qkv + shape.key(batch, kv_head, D), shape.row, first_key, end);
    values.template load<kKeys, kThreads>(a.qkv + shape.value(batch, kv_head, D), shape.row, first_key, end);
    load_stage(0);
    cp_async_commit();
    int now_head = first_head, now = first_stage;  // of the stage whose dS is there
    // dQ of this warp's eight queries of the stage whose dS is there: each lane's, 256 of them a stage.
    const int64_t of_head = int64_t{stages_of_sequence} * kThreads;
    float4* own =
        a.dqueries + (batch * shape.heads + first_head) * of_head + first_stage * kThreads + threadIdx.x;
    // Adds a stage's dS x K to dQ of eight queries of each warp. Transposed, so that they are a product's
    // columns.
    auto leave_queries = [&](const __nv_bfloat16* pairs, float4 so_far) {
      float dqueries[4] = {so_far.x, so_far.y, so_far.z, so_far.w};
      const int first_of_warp = now * kStage + 8 * warp,
                last_of_step = now * kStage + 8 * warp / kStep * kStep + kStep - 1;
      const __nv_bfloat16* right_at = pairs + lane * kPairStride + 8 * warp;
      const __nv_bfloat16* left_at = keys.data + in_columns;
      // Keys of warps that left out this step have no dS.
      const int end_key = last_of_step - first_key + 1;
      auto add = [&](int k) {
        uint32_t right[4], left[4];
        load_matrix_x4<true>(right, right_at + k * kPairStride);
        load_matrix_x4<true>(left, left_at + k * Tile<D>::kStride);
        mma_m16n8k16_bf16(dqueries, left, {right[0], right[1]});
        load_matrix_x4<true>(left, left_at + (k + 16) * Tile<D>::kStride);
        mma_m16n8k16_bf16(dqueries, left, {right[2], right[3]});
      };
      if (end_key >= kKeys) {
#pragma unroll
        for (int k = 0; k < kKeys; k += 32) add(k);
      } else {
#pragma unroll 1
        for (int k = 0; k < end_key; k += 32) add(k);
      }
      if (first_of_warp >= first_key + kKeys) {
        *own = {dqueries[0], dqueries[1], dqueries[2], dqueries[3]};
      } else {  // no later tile is seen
        __nv_bfloat16* out = a.dqkv + shape.query(batch, now_head, D) + g;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int query = first_of_warp + t + c;
          if (query >= end) continue;
          out[int64_t{query} * shape.row] = __float2bfloat16_rn(dqueries[c] * shape.scale);
          out[int64_t{query} * shape.row + 8] = __float2bfloat16_rn(dqueries[2 + c] * shape.scale);
        }
      }
      own += kThreads;
      if (++now == end_stage) {
        now = first_stage;
        ++now_head;
        own += of_head - (end_stage - first_stage) * kThreads;
      }
    };
    int stage = first_stage;
    for (int i = 0; i < count; ++i) {
      cp_async_wait<0>();
      // Stage i and dS of stage i - 1 have arrived; what is written now is not read any more.
      __syncthreads();
      if (i + 1 < count) load_stage(i + 1);
      cp_async_commit();
      const int first_of_stage = stage * kStage;
      if (++stage == end_stage) stage = first_stage;
      auto* pairs = all_pairs + (i % 2) * kKeys * kPairStride;

      // Documents hide some of this warp's keys.
      const bool cut = shape.first_visible(batch, min(first_of_stage + kStage, end) - 1) > first_key + row;

      // dQ of the stage before, so far: asked for before the products, which take longer.
      float4 so_far{};
      if (i > 0 && now < end_before) so_far = *own;

      // A step whose queries all come before this warp's keys is left out.
      const int first_part = max(0, first_key + row - first_of_stage) / kStep * kStep;
#pragma unroll 1
      for (int part = first_part; part < kStage; part += kStep) {
        const int first_query = first_of_stage + part;
        const __nv_bfloat16* queries = stages + (i % 2) * 2 * kTile + part * Tile<D>::kStride;
        const float* lse = floats + (i % 2) * 2 * kStage + part;
        float p[kMTiles][kStep / 8][4] = {};
        take_key_step<D, kMTiles, kStep>({.keys = keys.at(row, 0),
                                          .values = values.at(row, 0),
                                          .queries = queries,
                                          .douts = queries + kTile,
                                          .lse = lse,
                                          .delta = lse + kStage,
                                          .first_key = first_key + row,
                                          .first_query = first_query,
                                          .cut = cut},
                                         shape, batch, scale, in_columns, in_rows, p, dkeys, dvalues);
        auto* to = pairs + (row + g) * kPairStride + part + t;
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
          for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              *reinterpret_cast<uint32_t*>(to + (m * 16 + half * 8) * kPairStride + n * 8) =
                  pack_bf16(p[m][n][2 * half], p[m][n][2 * half + 1]);
            }
          }
        }
      }
      if (i > 0) leave_queries(all_pairs + (i + 1) % 2 * kKeys * kPairStride, so_far);
    }
    __syncthreads();  // dS of the last stage is there
    leave_queries(all_pairs + (count + 1) % 2 * kKeys * kPairStride, now < end_before ? *own : float4{});
    end_before = end_stage;
    __syncthreads();  // keys are not read any more
    const float of_keys[2] = {shape.scale, shape.scale}, of_values[2] = {1.0f, 1.0f};
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      const int at = row + m * 16;
      keys.store(dkeys[m], of_keys, at, a.dqkv + shape.key(batch, kv_head, D), shape.row, first_key, end);
      values.store(dvalues[m], of_values, at, a.dqkv + shape.value(batch, kv_head, D), shape.row, first_key,
                   end);
    }
  }
}

}  // namespace

bool flash_backward_whole_bf16(Stream& stream, const AttentionBackward& b, const float* delta,
                               float* dqueries) {
  // Blocks of whole sequences take the same time, so the last of them must not leave many places empty. Bits
  // are the same either way.
  const int device = stream.device().index;
  const int64_t blocks = b.batch * b.heads.kv_heads, places = kBlocksOnSm * sm_count(device);
  if (b.heads.head_dim != 16 || !b.keys.empty() || 10 * blocks < 8 * places * ceil_div(blocks, places) ||
      static_cast<size_t>(shared_bytes_per_block(device)) < kBlocksOnSm * (kSharedBytes<16> + 1024))
    return false;
  Arguments a{.qkv = pointer<__nv_bfloat16>(b.qkv),
              .dout = pointer<__nv_bfloat16>(b.dout),
              .lse = pointer<float>(b.lse),
              .delta = delta,
              .dqkv = pointer<__nv_bfloat16>(b.dqkv),
              .dqueries = reinterpret_cast<float4*>(dqueries),
              .shape = attention_shape(b)};
  for_each_grid(b.batch, [&](int64_t first, unsigned sequences) {
    a.shape.first_batch = first;
    launch("attention_backward", stream,
           {.grid = dim3(grid_of(a.shape.kv_heads), 1, sequences),
            .block = kThreads,
            .shared_bytes = kSharedBytes<16>},
           whole_kernel<16>, a);
  });
  return true;
}

}  // namespace ottava::cuda
