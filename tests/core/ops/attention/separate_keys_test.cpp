#include "tests/core/ops/attention/attention_problem.h"

using namespace ottava;
using namespace ottava::test;
using namespace ottava::test::attention;

namespace {

constexpr int64_t kChunk = 128;

/// Rows [first, first + count) of every sequence.
template <class T>
std::vector<T> rows_of_sequences(const std::vector<T>& all, const Case& c, int64_t first, int64_t count) {
  const int64_t width = static_cast<int64_t>(all.size()) / c.tokens();
  std::vector<T> some;
  for (int64_t b = 0; b < c.batch; ++b) {
    const auto from = all.begin() + (b * c.sequence + first) * width;
    some.insert(some.end(), from, from + count * width);
  }
  return some;
}

std::vector<float> columns(const std::vector<float>& all, int64_t width, int64_t first, int64_t count) {
  std::vector<float> some;
  for (size_t row = 0; row < all.size(); row += static_cast<size_t>(width)) {
    const auto from = all.begin() + static_cast<int64_t>(row) + first;
    some.insert(some.end(), from, from + count);
  }
  return some;
}

/// Queries [first, first + kChunk) of every sequence against keys and values of all, a group of heads per
/// call.
struct Part {
  Part(Stream& stream, const Problem& whole, int64_t first)
      : c{whole.c.batch, whole.c.heads, whole.c.kv_heads, whole.c.head_dim, kChunk},
        first(first),
        problem(stream, whole.qkv.tensor().dtype, c,
                rows_of_sequences(whole.qkv.floats(), whole.c, first, kChunk), whole.documents) {
    problem.starts.upload_as<int32_t>(rows_of_sequences(document_starts(whole.c), whole.c, first, kChunk));
    problem.dout.upload(rows_of_sequences(whole.dout.floats(), whole.c, first, kChunk));
  }
  void run(Stream& stream, const SeparateKeys& keys, bool backward) {
    const Pass pass = backward ? Pass::backward : Pass::forward;
    DeviceBuffer workspace(stream, DType::u8,
                           {attention_workspace_bytes(stream, pass, problem.qkv.tensor().dtype, c.layout(),
                                                      c.batch, kChunk, nullptr, keys)});
    const Tensor starts = problem.documents ? problem.starts.tensor() : Tensor{};
    if (!backward) {
      return attention_forward(stream, {.qkv = problem.qkv,
                                        .out = problem.out,
                                        .lse = problem.lse,
                                        .document_start = starts,
                                        .workspace = workspace,
                                        .heads = c.layout(),
                                        .batch = c.batch,
                                        .sequence = kChunk,
                                        .keys = keys});
    }
    attention_backward(stream, {.qkv = problem.qkv,
                                .out = problem.out,
                                .lse = problem.lse,
                                .dout = problem.dout,
                                .dqkv = problem.dqkv,
                                .document_start = starts,
                                .workspace = workspace,
                                .heads = c.layout(),
                                .batch = c.batch,
                                .sequence = kChunk,
                                .keys = keys});
  }

  Case c;
  int64_t first;
  Problem problem;
};

void check_parts(Stream& stream, DType dtype, const Case& c, int64_t heads_at_once, bool documents) {
  INFO("H " << c.heads << "/" << c.kv_heads << " T " << c.sequence << " by " << heads_at_once << " documents "
            << documents << " threads " << parallel_threads());
  const int64_t d = c.head_dim, row = c.layout().row(), q_width = c.heads * d, kv_width = c.kv_heads * d;
  Problem whole(stream, dtype, c, normal_values(c.tokens() * row, 1, dtype), documents);
  whole.dout.upload(normal_values(c.tokens() * q_width, 2, dtype));
  whole.forward(stream);
  whole.backward(stream);
  const std::vector<float> qkv = whole.qkv.floats(), out = whole.out.floats(), lse = whole.lse.floats(),
                           dqkv = whole.dqkv.floats();
  std::vector<std::unique_ptr<Part>> parts;
  for (int64_t first = 0; first < c.sequence; first += kChunk)
    parts.push_back(std::make_unique<Part>(stream, whole, first));
  for (int64_t head = 0; head < c.kv_heads; head += heads_at_once) {
    const int64_t width = heads_at_once * d;
    std::vector<float> values;
    for (int64_t n = 0; n < c.tokens(); ++n) {
      for (int64_t from : {q_width + head * d, q_width + kv_width + head * d})
        values.insert(values.end(), qkv.begin() + n * row + from, qkv.begin() + n * row + from + width);
    }
    DeviceBuffer keys(stream, dtype, {c.tokens(), 2 * width}, values);
    DeviceBuffer gradients(stream, DType::f32, {c.tokens(), 2 * width},
                           std::vector<float>(values.size(), 0.5f));
    for (auto& part : parts) {
      const SeparateKeys apart{keys, gradients, head, part->first};
      part->run(stream, apart, false);
      part->run(stream, apart, true);
    }
    const std::vector<float> dkv = gradients.floats();
    std::vector<double> got, want, size;
    for (size_t i = 0; i < dkv.size(); ++i) {
      const auto n = static_cast<int64_t>(i) / (2 * width), column = static_cast<int64_t>(i) % (2 * width);
      const int64_t from =
          column < width ? q_width + head * d + column : q_width + kv_width + head * d + column - width;
      want.push_back(static_cast<double>(dqkv[static_cast<size_t>(n * row + from)]));
      got.push_back(static_cast<double>(dkv[i]) - 0.5);
      size.push_back(1.0);
    }
    // Sums of the same terms in another grouping, on top of 0.5; in bf16 the whole call rounds its result.
    const double tolerance = dtype == DType::f32 ? 4e-6 : 1.0 / 128;
    for (size_t i = 0; i < got.size(); ++i) {
      INFO("element " << i);
      REQUIRE(std::abs(got[i] - want[i]) <= tolerance * (1 + std::abs(want[i])));
    }
  }
  for (const auto& part : parts) {
    INFO("queries from " << part->first);
    CHECK(part->problem.out.floats() == rows_of_sequences(out, c, part->first, kChunk));
    CHECK(columns(part->problem.dqkv.floats(), row, 0, q_width) ==
          rows_of_sequences(columns(dqkv, row, 0, q_width), c, part->first, kChunk));
    std::vector<float> want_lse;
    for (int64_t h = 0; h < c.batch * c.heads; ++h) {
      const auto from = lse.begin() + h * c.sequence + part->first;
      want_lse.insert(want_lse.end(), from, from + kChunk);
    }
    CHECK(part->problem.lse.floats() == want_lse);
  }
}

}  // namespace

TEST_CASE("attention of some queries against separate keys is bitwise that of all queries") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    check_parts(stream, dtype, {1, 4, 2, 16, 4 * kChunk}, 1, false);
    check_parts(stream, dtype, {2, 4, 2, 16, 3 * kChunk}, 1, true);
    check_parts(stream, dtype, {1, 2, 2, 32, 2 * kChunk}, 2, true);
  });
}

TEST_CASE("attention against separate keys sums dQ in the same order for any number of threads") {
  Stream stream = Stream::cpu();
  for_each_thread_count([&](int) { check_parts(stream, DType::f32, {1, 4, 2, 16, 6 * kChunk}, 1, true); });
}

TEST_CASE("separate keys that do not fit the queries are refused") {
  Stream stream = Stream::cpu();
  const Case c{1, 4, 2, 16, kChunk};
  DeviceBuffer keys(stream, DType::f32, {2 * kChunk, 32});
  const auto bytes = [&](const SeparateKeys& apart) {
    return attention_workspace_bytes(stream, Pass::forward, DType::f32, c.layout(), 1, kChunk, nullptr,
                                     apart);
  };
  CHECK(bytes({keys, {}, 1, kChunk}) > 0);
  CHECK_THROWS_WITH(
      bytes({keys, {}, 1, kChunk + 1}),
      "[attention_workspace_bytes] queries are positions [129, 257) of sequences that have keys "
      "for 256");
  CHECK_THROWS_WITH(bytes({keys, {}, 2, 0}), "[attention_workspace_bytes] keys are of heads [2, 3) of 2");
  CHECK_THROWS_WITH(bytes({keys.tensor().reshape({4 * kChunk, 16}), {}, 0, 0}),
                    "[attention_workspace_bytes] keys.values is f32 [512, 16], expected f32 [1 * S, 32 * G]");
}
