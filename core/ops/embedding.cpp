#include "core/ops/embedding.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "core/check.h"
#include "core/ops/embedding_kernels.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

constexpr std::string_view kForward = "embedding_forward", kBackward = "embedding_backward";

void check_vocabulary(std::string_view op, const Tensor& tokens, int64_t vocab_begin) {
  if (tokens.dtype != DType::i32 || tokens.shape.rank() != 1) {
    fail<ShapeError>(op, "tokens is {}, expected i32 [N]", describe(tokens));
  }
  if (vocab_begin < 0) fail<ShapeError>(op, "vocab_begin is {}, expected a global token id", vocab_begin);
}

void check(const EmbeddingForward& a) {
  check_vocabulary(kForward, a.tokens, a.vocab_begin);
  check_float(kForward, "table", a.table);
  if (a.table.shape.rank() != 2)
    fail<ShapeError>(kForward, "table is {}, expected [V, C]", describe(a.table));
  check_tensor(kForward, "out", a.out, a.table.dtype, {a.tokens.numel(), a.table.cols()});
}

void check(const EmbeddingBackward& a) {
  check_vocabulary(kBackward, a.tokens, a.vocab_begin);
  check_float(kBackward, "dout", a.dout);
  if (a.dtable.dtype != DType::f32 || a.dtable.shape.rank() != 2) {
    fail<ShapeError>(kBackward, "dtable is {}, expected f32 [V, C]", describe(a.dtable));
  }
  check_tensor(kBackward, "dout", a.dout, a.dout.dtype, {a.tokens.numel(), a.dtable.cols()});
  check_tensor(kBackward, "workspace", a.workspace, DType::i32,
               embedding_backward_workspace(a.tokens.numel(), a.dtable.rows()));
}

void embedding_forward_on_cpu(const EmbeddingForward& a) {
  const int32_t* tokens = a.tokens.as<int32_t>();
  const int64_t cols = a.table.cols(), vocab = a.table.rows(), row_bytes = cols * size_of(a.table.dtype);
  parallel_for_index(a.tokens.numel(), 16, [&](int64_t n) {
    assert(tokens[n] >= 0);  // the loader has checked every id
    const int64_t v = tokens[n] - a.vocab_begin;
    if (v >= 0 && v < vocab) {
      std::memcpy(a.out.at(n * cols), a.table.at(v * cols), row_bytes);
    } else {
      std::memset(a.out.at(n * cols), 0, row_bytes);
    }
  });
}

// A counting sort, which is stable, so that each row's tokens stay in order. It is serial, since N + V
// integers are little beside N * C floats.
TokensByRow sort_tokens(const EmbeddingBackward& a) {
  const int64_t vocab = a.dtable.rows(), count = a.tokens.numel();
  const int32_t* tokens = a.tokens.as<int32_t>();
  int32_t *first = a.workspace.as<int32_t>(), *order = first + vocab + 2;
  // first[v + 2] counts row v; then first[v + 1] is where row v's next token goes; in the end it is where row
  // v ends.
  std::fill(first, first + vocab + 2, 0);
  auto row_of = [&](int64_t n) { return tokens[n] - a.vocab_begin; };
  for (int64_t n = 0; n < count; ++n) {
    if (int64_t v = row_of(n); v >= 0 && v < vocab) ++first[v + 2];
  }
  for (int64_t v = 0; v < vocab; ++v) first[v + 2] += first[v + 1];
  for (int64_t n = 0; n < count; ++n) {
    if (int64_t v = row_of(n); v >= 0 && v < vocab) order[first[v + 1]++] = static_cast<int32_t>(n);
  }
  return {first, order};
}

// Threads divide the columns, not the rows, because text repeats a few tokens very often; each column is
// still summed in order.
void embedding_backward_on_cpu(const EmbeddingBackward& a) {
  const TokensByRow tokens = sort_tokens(a);
  const int64_t vocab = a.dtable.rows(), cols = a.dtable.cols();
  auto kernel = cpu::embedding_kernels().backward[a.dout.dtype];
  parallel_for(cols, 32, [&](int64_t begin, int64_t end) { kernel(a, tokens, {begin, end, vocab, cols}); });
}

}  // namespace

Shape embedding_backward_workspace(int64_t tokens, int64_t vocab_local) {
  // For the GPU's sort: a total, a count and an end per row, and the tokens by row, in any order and in
  // order. The CPU needs less.
  return {1 + 2 * vocab_local + 2 * tokens + 1};
}

void embedding_forward(Stream& stream, const EmbeddingForward& args) {
  check(args);
  run_op(stream, moving(kForward, 2 * args.out.bytes()), embedding_forward, embedding_forward_on_cpu,
         cuda::embedding_forward, args);
}

void embedding_backward(Stream& stream, const EmbeddingBackward& args) {
  check(args);
  // dout once; dtable's rows are read and written at most once each.
  const int64_t rows = std::min(args.tokens.numel(), args.dtable.rows());
  const int64_t bytes = args.dout.bytes() + 8 * rows * args.dtable.cols();
  run_op(stream, moving(kBackward, bytes), embedding_backward, embedding_backward_on_cpu,
         cuda::embedding_backward, args);
}

}  // namespace ottava
