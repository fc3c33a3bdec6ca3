#include <memory>

#include "tests/core/ops/attention/attention_problem.h"
#include "tests/core/ops/attention/cudnn_or_skipped.h"

using namespace ottava;
using namespace ottava::test;
using namespace ottava::test::attention;

namespace {

constexpr int64_t kChunk = 128;
constexpr float kBefore = 0.5f;  // what dK and dV are added to

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

template <class T>
std::vector<T> columns(const std::vector<T>& all, int64_t width, int64_t first, int64_t count) {
  std::vector<T> some;
  for (size_t row = 0; row < all.size(); row += static_cast<size_t>(width)) {
    const auto from = all.begin() + static_cast<int64_t>(row) + first;
    some.insert(some.end(), from, from + count);
  }
  return some;
}

/// Queries [first, first + kChunk) of every sequence against keys and values of all, a group of heads per
/// call.
struct Part {
  Part(Stream& stream, const Problem& whole, int64_t first, cuda::FusedAttention* fused)
      : c{whole.c.batch, whole.c.heads, whole.c.kv_heads, whole.c.head_dim, kChunk},
        first(first),
        problem(stream, whole.qkv.tensor().dtype, c,
                rows_of_sequences(whole.qkv.floats(), whole.c, first, kChunk), whole.documents, fused) {
    problem.starts.upload_as<int32_t>(rows_of_sequences(document_starts(whole.c), whole.c, first, kChunk));
    problem.dout.upload(rows_of_sequences(whole.dout.floats(), whole.c, first, kChunk));
  }
  void run(Stream& stream, const SeparateKeys& keys) {
    problem.run(stream, Pass::forward, keys);
    problem.run(stream, Pass::backward, keys);
  }

  Case c;
  int64_t first;
  Problem problem;
};

/// Attention of whole sequences by our kernels, and by its definition.
struct Whole {
  Whole(Stream& stream, DType dtype, const Case& c, bool documents)
      : c(c),
        documents(documents),
        problem(stream, dtype, c, normal_values(c.tokens() * c.layout().row(), 1, dtype), documents) {
    problem.dout.upload(normal_values(c.tokens() * c.heads * c.head_dim, 2, dtype));
    problem.forward(stream);
    problem.backward(stream);
    const auto doubles = [](const DeviceBuffer& x) {
      const std::vector<float> values = x.floats();
      return std::vector<double>(values.begin(), values.end());
    };
    reference = std::make_unique<Reference>(c, documents ? document_starts(c) : std::vector<int32_t>{},
                                            doubles(problem.qkv));
    gradient = reference->backward(doubles(problem.qkv), doubles(problem.dout), doubles(problem.out));
  }
  Case c;
  bool documents;
  Problem problem;
  std::unique_ptr<Reference> reference;
  Reference::Gradient gradient;
};

/// Runs a call for every chunk of queries and group of heads, then judge(got, element of dqkv) for every
/// element of dK and dV.
template <class Judge>
std::vector<std::unique_ptr<Part>> run_parts(Stream& stream, const Whole& whole, int64_t heads_at_once,
                                             cuda::FusedAttention* fused, const Judge& judge) {
  const Case& c = whole.c;
  const int64_t d = c.head_dim, row = c.layout().row(), q_width = c.heads * d, kv_width = c.kv_heads * d,
                width = heads_at_once * d;
  const std::vector<float> qkv = whole.problem.qkv.floats();
  std::vector<std::unique_ptr<Part>> parts;
  for (int64_t first = 0; first < c.sequence; first += kChunk)
    parts.push_back(std::make_unique<Part>(stream, whole.problem, first, fused));
  for (int64_t head = 0; head < c.kv_heads; head += heads_at_once) {
    const auto column = [&](int64_t i) {  // in qkv, of column i of the heads' keys and values
      return q_width + head * d + (i < width ? i : kv_width + i - width);
    };
    std::vector<float> values;
    for (int64_t n = 0; n < c.tokens(); ++n) {
      for (int64_t i = 0; i < 2 * width; ++i) values.push_back(qkv[static_cast<size_t>(n * row + column(i))]);
    }
    DeviceBuffer keys(stream, whole.problem.qkv.tensor().dtype, {c.tokens(), 2 * width}, values);
    DeviceBuffer gradients(stream, DType::f32, {c.tokens(), 2 * width},
                           std::vector<float>(values.size(), kBefore));
    for (auto& part : parts) part->run(stream, {keys, gradients, head, part->first});
    const std::vector<float> sums = gradients.floats();
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i);
      judge(static_cast<double>(sums[i] - kBefore),
            static_cast<size_t>(at / (2 * width) * row + column(at % (2 * width))));
    }
  }
  return parts;
}

std::vector<float> rows_of_heads(const std::vector<float>& lse, const Case& c, int64_t first) {
  std::vector<float> some;
  for (int64_t h = 0; h < c.batch * c.heads; ++h) {
    const auto from = lse.begin() + h * c.sequence + first;
    some.insert(some.end(), from, from + kChunk);
  }
  return some;
}

void check_parts(Stream& stream, DType dtype, const Case& c, int64_t heads_at_once, bool documents) {
  INFO("H " << c.heads << "/" << c.kv_heads << " T " << c.sequence << " by " << heads_at_once << " documents "
            << documents << " threads " << parallel_threads());
  const int64_t row = c.layout().row(), q_width = c.heads * c.head_dim;
  const Whole whole(stream, dtype, c, documents);
  const std::vector<float> dqkv = whole.problem.dqkv.floats();
  // dK and dV are the same f32 terms in groups of queries, one group after the other: what differs is how
  // their sums are rounded. Errors of either are relative to the sum of the terms' magnitudes; as terms have
  // either sign, partial sums stay far below that sum and an error is of the order of its unit roundoff,
  // 6e-8.
  double worst = 0;
  const auto parts = run_parts(stream, whole, heads_at_once, nullptr, [&](double got, size_t i) {
    const double want = static_cast<double>(dqkv[i]);
    const double stored = dtype == DType::bf16 ? unit_roundoff(dtype) * std::abs(want) : 0;
    const double error = (std::abs(got - want) - stored) / (whole.gradient.size[i] + kBefore);
    if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
  });
  CHECK(worst <= 1e-6);
  for (const auto& part : parts) {
    INFO("queries from " << part->first);
    CHECK(part->problem.out.floats() ==
          rows_of_sequences(whole.problem.out.floats(), c, part->first, kChunk));
    CHECK(columns(part->problem.dqkv.floats(), row, 0, q_width) ==
          rows_of_sequences(columns(dqkv, row, 0, q_width), c, part->first, kChunk));
    CHECK(part->problem.lse.floats() == rows_of_heads(whole.problem.lse.floats(), c, part->first));
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

TEST_CASE("attention has the same bits where keys of a sequence leave no room for those of another") {
  // On CUDA the blocks of two pairs of 16 MiB and more do not take turns.
  constexpr int64_t kPositions = 33000;
  const Case c{2, 2, 1, 128, kChunk};
  const int64_t width = 2 * c.head_dim, row = c.layout().row(), q_width = c.heads * c.head_dim;
  for (Device device : devices()) {
    Stream stream = stream_on(device);
    Problem whole(stream, DType::bf16, c, normal_values(c.tokens() * row, 1, DType::bf16), false);
    whole.dout.upload(normal_values(c.tokens() * q_width, 2, DType::bf16));
    const std::vector<float> seen = normal_values(c.tokens() * width, 3, DType::bf16);
    struct Results {
      std::vector<float> out, lse, dqueries, dkeys;
    };
    const auto run = [&](int64_t positions) {
      const Case all{c.batch, c.heads, c.kv_heads, c.head_dim, positions};
      std::vector<float> values(static_cast<size_t>(all.tokens() * width), NAN);  // which nobody reads
      for (int64_t b = 0; b < c.batch; ++b) {
        std::copy_n(seen.begin() + b * kChunk * width, kChunk * width,
                    values.begin() + b * positions * width);
      }
      DeviceBuffer keys(stream, DType::bf16, {all.tokens(), width}, values);
      DeviceBuffer gradients(stream, DType::f32, {all.tokens(), width},
                             std::vector<float>(values.size(), kBefore));
      Part part(stream, whole, 0, nullptr);
      part.run(stream, {keys, gradients});
      return Results{part.problem.out.floats(), part.problem.lse.floats(),
                     columns(part.problem.dqkv.floats(), row, 0, q_width),
                     rows_of_sequences(gradients.floats(), all, 0, kChunk)};
    };
    const Results alone = run(kPositions), together = run(kChunk);
    CHECK((alone.out == together.out));
    CHECK((alone.lse == together.lse));
    CHECK((alone.dqueries == together.dqueries));
    CHECK((alone.dkeys == together.dkeys));
  }
}

TEST_CASE("cuDNN's attention against separate keys agrees with the reference, and repeats bitwise") {
  const auto fused = cudnn_or_skipped();
  if (!fused) return;
  Stream stream = stream_on({DeviceType::cuda, 0});
  for (const auto& [c, heads_at_once] : {std::pair<Case, int64_t>{{1, 4, 2, 64, 2 * kChunk}, 1},
                                         {{2, 2, 2, 16, 2 * kChunk}, 2},
                                         {{1, 1, 1, 16, 4 * kChunk}, 1}}) {
    INFO("H " << c.heads << "/" << c.kv_heads << " D " << c.head_dim << " T " << c.sequence << " by "
              << heads_at_once);
    const Whole whole(stream, DType::bf16, c, false);
    const Reference& reference = *whole.reference;
    // A share of dK and dV is rounded to bf16 once, and so were the results that gradients begin with.
    const Tolerance of_out = reference.allowed(DType::bf16, c.sequence);
    Tolerance of_gradient = reference.allowed(DType::bf16, c.sequence * c.group());
    of_gradient.arithmetic += 2 * unit_roundoff(DType::bf16);
    std::vector<float> once;
    for (int run = 0; run < 2; ++run) {
      std::vector<float> got;
      std::vector<double> want, size;
      const auto parts = run_parts(stream, whole, heads_at_once, fused.get(), [&](double sum, size_t i) {
        got.push_back(static_cast<float>(sum));
        want.push_back(whole.gradient.dqkv[i]);
        size.push_back(whole.gradient.size[i] + kBefore);
      });
      if (run == 1) {
        CHECK((got == once));
        continue;
      }
      once = got;
      check_close(got, want, of_gradient, size);
      const int64_t row = c.layout().row(), q_width = c.heads * c.head_dim;
      for (const auto& part : parts) {
        INFO("queries from " << part->first);
        const auto mine = [&](const std::vector<double>& all) {
          return rows_of_sequences(all, c, part->first, kChunk);
        };
        check_close(part->problem.out.floats(), mine(reference.out), of_out, mine(reference.out_size));
        check_close(columns(part->problem.dqkv.floats(), row, 0, q_width),
                    mine(columns(whole.gradient.dqkv, row, 0, q_width)), of_gradient,
                    mine(columns(whole.gradient.size, row, 0, q_width)));
        const std::vector<float> lse = part->problem.lse.floats(),
                                 ours = rows_of_heads(whole.problem.lse.floats(), c, part->first);
        for (size_t i = 0; i < lse.size(); ++i) REQUIRE(lse[i] == Approx(ours[i]).margin(2e-2));
      }
    }
  }
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
