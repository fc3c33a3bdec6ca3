#include "core/cuda/elements.cuh"
#include "core/cuda/row_part.cuh"
#include "core/cuda/runtime.h"
#include "core/ops/embedding_kernels.h"

// Ceiling: memory bandwidth. Forward reads and writes each row once. Backward reads dout once and reads and
// writes each row of dtable that has tokens once; sorting moves about 40 bytes per token and 12 per table row
// beside that.
namespace ottava::cuda {
namespace {

constexpr int kBlock = 128;
constexpr int kTokensOfTeam = 4;  // under way at once where several tokens share a block

template <class Team>
struct Gather {
  const int32_t* tokens;
  int64_t tokens_count, packs, vocab, vocab_begin;
  Team teams;
};

// A team has kAtOnce neighbouring tokens, all of whose rows are under way at once.
template <class T, int kSize, class Team>
__global__ void __launch_bounds__(kBlock) gather_kernel(Gather<Team> g, const T* table, T* out) {
  constexpr int kAtOnce = Team::kWhole ? 1 : kTokensOfTeam;
  const int64_t first = g.teams.row() * kAtOnce;
  const auto exists = [&](int j) { return Team::kWhole || first + j < g.tokens_count; };
  int64_t v[kAtOnce];
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    const int64_t row = exists(j) ? g.tokens[first + j] - g.vocab_begin : -1;
    v[j] = row < g.vocab ? row : -1;
  }
#pragma unroll(Team::kWhole ? 4 : 1)
  for (int64_t c = g.teams.member(); c < g.packs; c += g.teams.size()) {
    Pack<T, kSize> rows[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (v[j] >= 0) {
        rows[j] = load_pack<T, kSize>(table, v[j] * g.packs + c);
      } else {
        rows[j] = {};
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (exists(j)) store_pack(out, (first + j) * g.packs + c, rows[j]);
    }
  }
}

// Tokens are grouped by table row: counted, given a segment per row, put there in any order, and put in
// ascending order by counting the smaller ones. Where a segment lies depends on the order of atomics; what it
// holds in the end does not.
struct Sort {
  const int32_t* tokens;
  int32_t* total;        // [1], zero before
  int32_t* count;        // [V], zero before
  int32_t* end;          // [V]: of the row's segment
  int32_t *any, *order;  // [N]
  int64_t tokens_count, vocab, vocab_begin;

  __device__ __forceinline__ int64_t row_of(int64_t n) const {
    const int64_t v = n < tokens_count ? tokens[n] - vocab_begin : -1;
    return v < vocab ? v : -1;  // negative: another rank's
  }
};

__global__ void __launch_bounds__(kBlock) count_kernel(Sort s) {
  const int64_t v = s.row_of(thread_of_grid(kBlock));
  if (v >= 0) atomicAdd(&s.count[v], 1);
}
__global__ void __launch_bounds__(kBlock) segment_kernel(Sort s) {
  const int64_t v = thread_of_grid(kBlock);
  if (v < s.vocab && s.count[v] > 0) s.end[v] = atomicAdd(s.total, s.count[v]);
}
__global__ void __launch_bounds__(kBlock) place_kernel(Sort s) {
  const int64_t n = thread_of_grid(kBlock), v = s.row_of(n);
  if (v >= 0) s.any[atomicAdd(&s.end[v], 1)] = static_cast<int32_t>(n);
}
// A token compares itself with all of its row: the squares of the counts, 0.3% of N^2 in text. Lanes of a
// warp read the same address, so the worst there is, 131,072 tokens that are all one, is 5e8 warp-wide reads
// from the L1 cache: a few milliseconds of a GPU of 132 SMs, and sum_kernel, one block for 1024 columns of
// such a row, takes as long.
__global__ void __launch_bounds__(kBlock) order_kernel(Sort s) {
  const int64_t n = thread_of_grid(kBlock), v = s.row_of(n);
  if (v < 0) return;
  const int32_t end = s.end[v], begin = end - s.count[v];
  int32_t smaller = 0;
#pragma unroll 4
  for (int32_t i = begin; i < end; ++i) smaller += s.any[i] < n;
  s.order[begin + smaller] = static_cast<int32_t>(n);
}

// Blocks of a row's first token add all of them, each thread its columns, in order of position.
template <class T, int kSize>
__global__ void __launch_bounds__(kBlock) sum_kernel(Sort s, const T* dout, float* dtable, int64_t packs) {
  const int64_t n = blockIdx.x, v = s.row_of(n), c = blockIdx.y * int64_t{kBlock} + threadIdx.x;
  if (v < 0 || c >= packs) return;
  const int32_t end = s.end[v], begin = end - s.count[v];
  if (s.order[begin] != n) return;
  auto sum = load_pack<float, kSize>(dtable, v * packs + c);
#pragma unroll 8
  for (int32_t i = begin; i < end; ++i) {
    const auto row = load_pack<T, kSize>(dout, s.order[i] * packs + c);
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum.values[k] += row[k];
  }
  store_pack(dtable, v * packs + c, sum);
}

// The same where tables are narrow, so that a block has few loads of its own, and not larger than the text,
// in which rows can then have thousands of tokens: a block for each row of the table, and 16 to 32 of its
// tokens on their way into shared memory, where a thread reads only what it has copied.
constexpr int kNarrow = 64;  // packs of a row at most, and threads
constexpr int kTokensAhead = 16;
constexpr size_t kAheadBytes = 2 * kTokensAhead * kNarrow * 16;

template <class T, int kSize>
__global__ void __launch_bounds__(kNarrow)
    narrow_sum_kernel(Sort s, const T* dout, float* dtable, int64_t packs) {
  using P = Pack<T, kSize>;
  static_assert(sizeof(P) == 16);
  const int64_t v = blockIdx.x, c = threadIdx.x;
  const int32_t count = s.count[v];
  if (count == 0) return;
  const int32_t begin = s.end[v] - count;
  const bool has_columns = c < packs;
  P* mine = dynamic_shared<P>() + threadIdx.x;
  const auto slot = [&](int32_t i) { return mine + i % (2 * kTokensAhead) * kNarrow; };
  const auto start = [&](int32_t first) {
    // By another lane for each: a thread that reads them all waits for one after the other.
    const int32_t own = first + static_cast<int32_t>(threadIdx.x % kTokensAhead);
    const int32_t token = own < count ? s.order[begin + own] : 0;
#pragma unroll
    for (int32_t j = 0; j < kTokensAhead; ++j) {
      const int64_t n = __shfl_sync(kAllLanes, token, j);
      if (has_columns && first + j < count)
        cp_async_16(slot(first + j), dout + (n * packs + c) * kSize, true);
    }
    cp_async_commit();
  };
  auto sum = has_columns ? load_pack<float, kSize>(dtable, v * packs + c) : Pack<float, kSize>{};
  start(0);
  for (int32_t first = 0; first < count; first += kTokensAhead) {
    start(first + kTokensAhead);
    cp_async_wait<1>();
    if (!has_columns) continue;
#pragma unroll
    for (int32_t j = 0; j < kTokensAhead; ++j) {
      if (first + j >= count) break;
      const P row = *slot(first + j);
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum.values[k] += row[k];
    }
  }
  if (has_columns) store_pack(dtable, v * packs + c, sum);
}

template <class T, int kSize>
void gather_rows(Stream& stream, const EmbeddingForward& f, int64_t packs) {
  dispatch_teams<kBlock>(packs, [&]<class Team>(Team teams) {
    const Gather<Team> gather{.tokens = pointer<int32_t>(f.tokens),
                              .tokens_count = f.tokens.numel(),
                              .packs = packs,
                              .vocab = f.table.rows(),
                              .vocab_begin = f.vocab_begin,
                              .teams = teams};
    launch("embedding_forward", stream,
           teams.shape(Team::kWhole ? gather.tokens_count : ceil_div(gather.tokens_count, kTokensOfTeam)),
           gather_kernel<T, kSize, Team>, gather, pointer<T>(f.table), pointer<T>(f.out));
  });
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& f) {
  dispatch_element(f.table.dtype, "embedding_forward", [&]<class T>() {
    dispatch_pack<T>(
        f.table.cols(),
        [&]<int kSize>() {
          const int64_t packs = f.table.cols() / kSize;
          // Any element's 16 bytes are moved as words, which stay in registers as they were loaded.
          if constexpr (kSize > 1) return gather_rows<float, kPackSize<float>>(stream, f, packs);
          gather_rows<T, 1>(stream, f, packs);
        },
        f.table, f.out);
  });
}

void embedding_backward(Stream& stream, const EmbeddingBackward& b) {
  constexpr std::string_view kOp = "embedding_backward";
  const int64_t tokens = b.tokens.numel(), vocab = b.dtable.rows(), cols = b.dtable.cols();
  auto* work = pointer<int32_t>(b.workspace);
  const Sort sort{pointer<int32_t>(b.tokens),    work,   work + 1, work + 1 + vocab, work + 1 + 2 * vocab,
                  work + 1 + 2 * vocab + tokens, tokens, vocab,    b.vocab_begin};
  fill_zero(work, static_cast<size_t>(1 + vocab) * sizeof(int32_t), stream.native());
  const LaunchShape per_token = one_thread_each(tokens, kBlock);
  launch(kOp, stream, per_token, count_kernel, sort);
  launch(kOp, stream, one_thread_each(vocab, kBlock), segment_kernel, sort);
  launch(kOp, stream, per_token, place_kernel, sort);
  launch(kOp, stream, per_token, order_kernel, sort);
  dispatch_element(b.dout.dtype, kOp, [&]<class T>() {
    dispatch_pack<T>(
        cols,
        [&]<int kSize>() {
          const int64_t packs = cols / kSize;
          if constexpr (kSize > 1) {
            if (packs <= kNarrow && vocab <= tokens) {
              return launch(
                  kOp, stream, {.grid = grid_of(vocab), .block = kNarrow, .shared_bytes = kAheadBytes},
                  narrow_sum_kernel<T, kSize>, sort, pointer<T>(b.dout), pointer<float>(b.dtable), packs);
            }
          }
          launch(kOp, stream,
                 {.grid = dim3(grid_of(tokens), grid_of_yz(ceil_div(packs, kBlock))), .block = kBlock},
                 sum_kernel<T, kSize>, sort, pointer<T>(b.dout), pointer<float>(b.dtable), packs);
        },
        b.dout, b.dtable);
  });
}

}  // namespace ottava::cuda
