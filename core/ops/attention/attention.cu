#include "core/cuda/reduce.cuh"
#include "core/ops/attention/flash_attention.cuh"

namespace ottava::cuda {
namespace {

// --- delta[b,h,t] = sum_D dout * out. Ceiling: memory bandwidth, 2 elements read per element.
constexpr int kDeltaThreads = 128;

// D elements of one head are 16 bytes in each of a few neighbouring lanes.
template <class T, int D>
__global__ void __launch_bounds__(kDeltaThreads)
    delta_kernel(const T* out, const T* dout, float* delta, int64_t tokens, AttentionShape shape) {
  constexpr int kSize = kPackSize<T>, kLanes = D / kSize;
  const int64_t index = thread_of_grid(kDeltaThreads), head_of_token = index / kLanes;
  const bool valid = head_of_token < tokens * shape.heads;
  float sum = 0;
  if (valid) {
    const auto x = load_pack<T, kSize>(out, index), y = load_pack<T, kSize>(dout, index);
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum = fmaf(x[i], y[i], sum);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (!valid || index % kLanes != 0) return;
  const int64_t token = head_of_token / shape.heads, head = head_of_token % shape.heads;
  const int64_t query = shape.first_query + token % shape.queries;
  delta[shape.statistics(token / shape.queries, static_cast<int>(head)) + query] = sum;
}

// --- One query against a cache. Ceiling: memory bandwidth over the cache, read once per query head: the
// heads of a group find it in the L2 cache. A block takes one head; its keys come in chunks whose scores fit
// in shared memory.
constexpr int kDecodeThreads = 128, kChunk = 512;

template <class T>
struct DecodeArguments {
  const T *q, *keys, *values;
  T* out;
  int64_t capacity;
  int length, heads, kv_heads;
  float scale;
};

template <class T, int D>
__global__ void __launch_bounds__(kDecodeThreads) decode_kernel(DecodeArguments<T> a) {
  constexpr int kSize =
      D / 16 < kPackSize<T> ? D / 16 : kPackSize<T>;  // 16 lanes per key, or more packs of each
  constexpr int kTeam = 16, kTeams = kDecodeThreads / kTeam, kPacks = D / (kTeam * kSize);
  constexpr int kParts = kDecodeThreads / D;  // threads that share a column of the result
  OTTAVA_SHARED(float, scores, [kChunk]);
  OTTAVA_SHARED(float, partial, [kDecodeThreads]);
  const unsigned heads = static_cast<unsigned>(a.heads);
  const int head = static_cast<int>(blockIdx.x % heads), kv_head = head / (a.heads / a.kv_heads),
            member = threadIdx.x % kTeam;
  const int64_t batch = blockIdx.x / heads, row = int64_t{a.kv_heads} * D;
  const T* q = a.q + (batch * a.heads + head) * D;
  const T* keys = a.keys + batch * a.capacity * row + int64_t{kv_head} * D;
  const T* values = a.values + batch * a.capacity * row + int64_t{kv_head} * D;

  Pack<T, kSize> query[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) query[k] = load_pack<T, kSize>(q, member + kTeam * k);
  const int column = threadIdx.x % D, part = threadIdx.x / D;
  float largest = -INFINITY, sum = 0, result = 0;
  for (int first = 0; first < a.length; first += kChunk) {
    const int count = min(kChunk, a.length - first);
    __syncthreads();  // the previous chunk's scores have been used
    for (int base = 0; base < count; base += kTeams) {
      const int j = base + threadIdx.x / kTeam;
      float dot = 0;
      if (j < count) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
          const auto key = load_pack<T, kSize>(keys + (first + j) * row, member + kTeam * k);
#pragma unroll
          for (int i = 0; i < kSize; ++i) dot += query[k][i] * key[i];
        }
      }
#pragma unroll
      for (int offset = kTeam / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(kAllLanes, dot, offset);
      if (j < count && member == 0) scores[j] = dot * a.scale;
    }
    __syncthreads();
    float chunk_max = largest;
    for (int j = threadIdx.x % 32; j < count; j += 32) chunk_max = fmaxf(chunk_max, scores[j]);
    chunk_max = warp_max(chunk_max);  // every warp finds the same
    const float shrink = expf(largest - chunk_max);
    largest = chunk_max;
    sum *= shrink;
    result *= shrink;
    for (int j = 0; j < count; ++j) {
      const float p = expf(scores[j] - largest);
      sum += p;
      if (j % kParts == part) result += p * to_float(values[(first + j) * row + column]);
    }
  }
  partial[threadIdx.x] = result;
  __syncthreads();
  if (part != 0) return;
  for (int i = 1; i < kParts; ++i) result += partial[i * D + column];
  a.out[(batch * a.heads + head) * D + column] = from_float<T>(result / sum);
}

/// Tiles are copied 16 bytes at a time. Heads are multiples of that, so only the base address matters.
template <class... Tensors>
void check_alignment(std::string_view op, const Tensors&... tensors) {
  if (!rows_are_aligned(0, tensors...)) {
    fail<ShapeError>(op, "a tensor is not aligned to 16 bytes, which the cuda kernels need");
  }
}

}  // namespace

void attention_forward(Stream& stream, const AttentionForward& f) {
  check_alignment("attention_forward", f.qkv, f.out, f.keys.values);
  f.qkv.dtype == DType::f32 ? tiled_forward_f32(stream, f) : flash_forward_bf16(stream, f);
}

void attention_backward(Stream& stream, const AttentionBackward& b) {
  constexpr std::string_view kOp = "attention_backward";
  check_alignment(kOp, b.qkv, b.out, b.dout, b.dqkv, b.keys.values);
  const int64_t needed = attention_workspace_bytes(Pass::backward, b.heads, b.batch, b.sequence);
  if (b.workspace.dtype != DType::u8 || b.workspace.bytes() < needed || !rows_are_aligned(0, b.workspace)) {
    fail<MemoryError>(
        kOp,
        "workspace is {}, expected u8 with at least {} elements: attention_workspace_bytes says how many",
        describe(b.workspace), needed);
  }
  auto* delta = pointer<float>(b.workspace);
  const AttentionShape shape = attention_shape(b);
  dispatch_element(b.qkv.dtype, kOp, [&]<class T>() {
    dispatch_head_dim(b.heads.head_dim, [&]<int D>() {
      const int64_t threads = b.out.numel() / kPackSize<T>;
      launch(kOp, stream, one_thread_each(threads, kDeltaThreads), delta_kernel<T, D>, pointer<T>(b.out),
             pointer<T>(b.dout), delta, b.out.rows(), shape);
    });
  });
  if (b.qkv.dtype == DType::f32) return tiled_backward_f32(stream, b, delta);
  auto* dqueries = delta + attention_delta_bytes(b.heads, b.batch, b.sequence) / sizeof(float);
  if (!flash_backward_whole_bf16(stream, b, delta, dqueries)) flash_backward_bf16(stream, b, delta);
}

void attention_decode(Stream& stream, const AttentionDecode& d) {
  check_alignment("attention_decode", d.q, d.keys, d.values);
  dispatch_element(d.q.dtype, "attention_decode", [&]<class T>() {
    const DecodeArguments<T> a{.q = pointer<T>(d.q),
                               .keys = pointer<T>(d.keys),
                               .values = pointer<T>(d.values),
                               .out = pointer<T>(d.out),
                               .capacity = d.keys.shape[1],
                               .length = static_cast<int>(d.length),
                               .heads = static_cast<int>(d.heads.heads),
                               .kv_heads = static_cast<int>(d.heads.kv_heads),
                               .scale = 1.0f / sqrtf(static_cast<float>(d.heads.head_dim))};
    dispatch_head_dim(d.heads.head_dim, [&]<int D>() {
      launch("attention_decode", stream,
             {.grid = grid_of(d.heads.heads * d.q.rows()), .block = kDecodeThreads}, decode_kernel<T, D>, a);
    });
  });
}

}  // namespace ottava::cuda
