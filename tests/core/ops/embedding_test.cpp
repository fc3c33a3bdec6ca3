#include "core/ops/embedding.h"

#include <cstring>
#include <random>

#include "core/cost.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

struct Size {
  int64_t tokens, vocab, cols;
};
const Size kSizes[] = {{1, 1, 1},    {9, 4, 7},    {40, 300, 16}, {257, 20, 37},
                       {100, 8, 96}, {333, 5, 64}, {70, 3, 520}};

// Ids of a vocabulary three times as large as the local part [vocab, 2 vocab), some very frequent.
std::vector<int32_t> some_tokens(const Size& size) {
  std::mt19937 generator(7);
  std::vector<int32_t> tokens;
  for (int64_t n = 0; n < size.tokens; ++n) {
    auto id = n % 3 == 0 ? size.vocab : static_cast<int64_t>(generator()) % (3 * size.vocab);
    tokens.push_back(static_cast<int32_t>(id));
  }
  return tokens;
}

}  // namespace

TEST_CASE("embedding_forward copies the rows it owns and leaves zero for those of other ranks") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& size : kSizes) {
      INFO("tokens " << size.tokens << " cols " << size.cols);
      auto table = normal_values(size.vocab * size.cols, 1, dtype);
      auto tokens = some_tokens(size);
      DeviceBuffer table_VC(stream, dtype, {size.vocab, size.cols}, table),
          out(stream, dtype, {size.tokens, size.cols}), tokens_N(stream, DType::i32, {size.tokens});
      tokens_N.upload_as<int32_t>(tokens);
      embedding_forward(stream,
                        {.tokens = tokens_N, .table = table_VC, .out = out, .vocab_begin = size.vocab});
      std::vector<float> want;
      for (int32_t id : tokens) {
        int64_t row = id - size.vocab;
        for (int64_t c = 0; c < size.cols; ++c) {
          want.push_back(row >= 0 && row < size.vocab ? table[static_cast<size_t>(row * size.cols + c)]
                                                      : 0.0f);
        }
      }
      CHECK(out.floats() == want);
    }
  });
}

// Additions in the stated order give the same floats everywhere, so the comparison is exact.
TEST_CASE("embedding_backward adds each row's tokens in order, bitwise, for any number of threads") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Size& size : kSizes) {
      INFO("tokens " << size.tokens << " cols " << size.cols);
      auto dout = normal_values(size.tokens * size.cols, 1, dtype),
           before = normal_values(size.vocab * size.cols, 2);
      auto tokens = some_tokens(size);
      std::vector<float> want = before;
      for (int64_t n = 0; n < size.tokens; ++n) {
        int64_t row = tokens[static_cast<size_t>(n)] - size.vocab;
        if (row < 0 || row >= size.vocab) continue;
        for (int64_t c = 0; c < size.cols; ++c) {
          want[static_cast<size_t>(row * size.cols + c)] += dout[static_cast<size_t>(n * size.cols + c)];
        }
      }
      DeviceBuffer dout_NC(stream, dtype, {size.tokens, size.cols}, dout),
          dtable(stream, DType::f32, {size.vocab, size.cols}), tokens_N(stream, DType::i32, {size.tokens}),
          workspace(stream, DType::i32, embedding_backward_workspace(size.tokens, size.vocab));
      tokens_N.upload_as<int32_t>(tokens);
      for_each_thread_count([&](int threads) {
        INFO("threads " << threads);
        dtable.upload(before);
        embedding_backward(stream, {.tokens = tokens_N,
                                    .dout = dout_NC,
                                    .dtable = dtable,
                                    .workspace = workspace,
                                    .vocab_begin = size.vocab});
        CHECK(dtable.floats() == want);
      });
    }
  });
}

TEST_CASE("embedding on meta records what crosses memory") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Tensor tokens = shape_only(DType::i32, {6}), rows = shape_only(DType::bf16, {6, 16});
  embedding_forward(stream, {.tokens = tokens, .table = shape_only(DType::bf16, {4, 16}), .out = rows});
  CHECK(recorder.bytes() == 2 * 6 * 16 * 2);
  embedding_backward(stream, {.tokens = tokens,
                              .dout = rows,
                              .dtable = shape_only(DType::f32, {4, 16}),
                              .workspace = shape_only(DType::i32, embedding_backward_workspace(6, 4))});
  CHECK(recorder.bytes() == 2 * 6 * 16 * 2 + 6 * 16 * 2 + 4 * 16 * 8);
}

TEST_CASE("embedding refuses tensors that do not fit, and says which") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const EmbeddingForward forward{.tokens = shape_only(DType::i32, {6}),
                                 .table = shape_only(DType::bf16, {4, 16}),
                                 .out = shape_only(DType::bf16, {6, 16})};
  embedding_forward(stream, forward);
  auto forward_says = [&](auto&& change, const std::string& message) {
    EmbeddingForward args = forward;
    change(args);
    CHECK_THROWS_WITH(embedding_forward(stream, args), "[embedding_forward] " + message);
  };
  forward_says([](auto& a) { a.tokens.dtype = DType::i64; }, "tokens is i64 [6], expected i32 [N]");
  forward_says([](auto& a) { a.tokens.shape = {2, 3}; }, "tokens is i32 [2, 3], expected i32 [N]");
  forward_says([](auto& a) { a.vocab_begin = -1; }, "vocab_begin is -1, expected a global token id");
  forward_says([](auto& a) { a.table.dtype = DType::i32; }, "table is i32 [4, 16], expected f32 or bf16");
  forward_says([](auto& a) { a.table.shape = {64}; }, "table is bf16 [64], expected [V, C]");
  forward_says([](auto& a) { a.out.shape = {6, 8}; }, "out is bf16 [6, 8], expected bf16 [6, 16]");

  const EmbeddingBackward backward{.tokens = forward.tokens,
                                   .dout = forward.out,
                                   .dtable = shape_only(DType::f32, {4, 16}),
                                   .workspace = shape_only(DType::i32, embedding_backward_workspace(6, 4))};
  embedding_backward(stream, backward);
  auto backward_says = [&](auto&& change, const std::string& message) {
    EmbeddingBackward args = backward;
    change(args);
    CHECK_THROWS_WITH(embedding_backward(stream, args), "[embedding_backward] " + message);
  };
  backward_says([](auto& a) { a.tokens.dtype = DType::i64; }, "tokens is i64 [6], expected i32 [N]");
  backward_says([](auto& a) { a.vocab_begin = -1; }, "vocab_begin is -1, expected a global token id");
  backward_says([](auto& a) { a.dout.dtype = DType::i32; }, "dout is i32 [6, 16], expected f32 or bf16");
  backward_says([](auto& a) { a.dtable.dtype = DType::bf16; }, "dtable is bf16 [4, 16], expected f32 [V, C]");
  backward_says([](auto& a) { a.dout.shape = {5, 16}; }, "dout is bf16 [5, 16], expected bf16 [6, 16]");
  backward_says([](auto& a) { a.workspace.shape = {3}; },
                "workspace is i32 [3], expected i32 " + to_string(embedding_backward_workspace(6, 4)));
}
