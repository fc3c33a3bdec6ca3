#include "core/ops/attention.h"

#include <cstring>
#include <numbers>

#include "core/cost.h"
#include "core/cuda/fused_attention.h"
#include "core/parallel_for.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

struct Case {
  int64_t batch, heads, kv_heads, head_dim, sequence;
  AttentionHeads layout() const { return {heads, kv_heads, head_dim}; }
  int64_t tokens() const { return batch * sequence; }
  int64_t group() const { return heads / kv_heads; }
};
// One token; less than a vector; odd lengths around tiles of 128 queries and 256 keys; groups, also of a
// number that is no power of two and one with more heads than a tile has rows to spare; several key tiles.
const Case kCases[] = {{1, 1, 1, 8, 1},     {2, 2, 2, 16, 7},   {1, 4, 2, 8, 37},
                       {1, 2, 1, 64, 130},  {1, 3, 1, 24, 300}, {2, 4, 2, 16, 257},
                       {1, 1, 1, 128, 256}, {1, 16, 1, 16, 70}, {1, 2, 2, 32, 650}};

bool runs_on(Stream& stream, const Case& c) {
  const int64_t d = c.head_dim;
  return stream.type() != DeviceType::cuda || d == 16 || d == 32 || d == 64 || d == 128;
}

/// Documents of lengths 1, 5, 90 and what remains.
std::vector<int32_t> document_starts(const Case& c) {
  std::vector<int32_t> starts;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int32_t t = 0; t < c.sequence; ++t) starts.push_back(t < 1 ? 0 : t < 6 ? 1 : t < 96 ? 6 : 96);
  }
  return starts;
}

/// Attention by its definition, in FP64.
struct Reference {
  Case c;
  std::vector<int32_t> starts;  ///< empty: no documents
  std::vector<double> out, lse, out_size, p;
  double largest_exponent = 0;  ///< largest scale * sum |q k|: what errors of the scores are relative to

  Reference(const Case& c, std::vector<int32_t> starts, const std::vector<double>& qkv)
      : c(c), starts(std::move(starts)) {
    const int64_t t_count = c.sequence, d = c.head_dim;
    out.resize(size_t(c.tokens() * c.heads * d));
    out_size.resize(out.size());
    lse.resize(size_t(c.batch * c.heads * t_count));
    p.resize(size_t(c.batch * c.heads * t_count * t_count));
    for_each_query([&](int64_t b, int64_t h, int64_t i, int64_t begin) {
      std::vector<double> s(static_cast<size_t>(i + 1));
      double top = -INFINITY, sum = 0;
      for (int64_t j = begin; j <= i; ++j) {
        double dot = 0, size = 0;
        for (int64_t e = 0; e < d; ++e) {
          const double term = qkv[q_at(b, h, i) + size_t(e)] * qkv[k_at(b, h, j) + size_t(e)];
          dot += term;
          size += std::abs(term);
        }
        s[size_t(j)] = dot * scale();
        largest_exponent = std::max(largest_exponent, size * scale());
        top = std::max(top, s[size_t(j)]);
      }
      for (int64_t j = begin; j <= i; ++j) sum += std::exp(s[size_t(j)] - top);
      lse[size_t((b * c.heads + h) * t_count + i)] = top + std::log(sum);
      for (int64_t j = begin; j <= i; ++j) {
        const double weight = std::exp(s[size_t(j)] - top) / sum;
        p[p_at(b, h, i, j)] = weight;
        for (int64_t e = 0; e < d; ++e) {
          out[o_at(b, h, i) + size_t(e)] += weight * qkv[v_at(b, h, j) + size_t(e)];
          out_size[o_at(b, h, i) + size_t(e)] += weight * std::abs(qkv[v_at(b, h, j) + size_t(e)]);
        }
      }
    });
  }

  struct Gradient {
    std::vector<double> dqkv, size;
  };
  /// delta comes from `stored_out`, the output as the operation is given it.
  Gradient backward(const std::vector<double>& qkv, const std::vector<double>& dout,
                    const std::vector<double>& stored_out) const {
    Gradient g{std::vector<double>(qkv.size()), std::vector<double>(qkv.size())};
    const size_t d = size_t(c.head_dim);
    for_each_query([&](int64_t b, int64_t h, int64_t i, int64_t begin) {
      double delta = 0, delta_size = 0;
      for (size_t e = 0; e < d; ++e) {
        delta += dout[o_at(b, h, i) + e] * stored_out[o_at(b, h, i) + e];
        delta_size += std::abs(dout[o_at(b, h, i) + e] * stored_out[o_at(b, h, i) + e]);
      }
      for (int64_t j = begin; j <= i; ++j) {
        const double weight = p[p_at(b, h, i, j)];
        double dp = 0, dp_size = 0;
        for (size_t e = 0; e < d; ++e) {
          const double go = dout[o_at(b, h, i) + e], v = qkv[v_at(b, h, j) + e];
          dp += go * v;
          dp_size += std::abs(go * v);
          add(g, v_at(b, h, j) + e, weight * go, std::abs(weight * go));
        }
        const double ds = weight * (dp - delta) * scale(),
                     ds_size = weight * (dp_size + delta_size) * scale();
        for (size_t e = 0; e < d; ++e) {
          const double q = qkv[q_at(b, h, i) + e], k = qkv[k_at(b, h, j) + e];
          add(g, q_at(b, h, i) + e, ds * k, ds_size * std::abs(k));
          add(g, k_at(b, h, j) + e, ds * q, ds_size * std::abs(q));
        }
      }
    });
    return g;
  }

  /// f32 arithmetic with probabilities (and their gradients) rounded once more where tiles are bf16: an error
  /// in the exponent is a relative one of the probability.
  Tolerance allowed(DType dtype, int64_t terms) const {
    const double u = unit_roundoff(DType::f32);
    const double exponent = largest_exponent * (sum_roundoff(c.head_dim) + 4 * u);
    const double operand = dtype == DType::bf16 ? 2 * unit_roundoff(DType::bf16) : 0;
    return {.stored = unit_roundoff(dtype),
            .arithmetic = 2 * exponent + 16 * u + sum_roundoff(terms) + sum_roundoff(c.head_dim) + operand};
  }
  Tolerance allowed_lse() const {
    const double u = unit_roundoff(DType::f32);
    return {.stored = 4 * u,
            .arithmetic =
                largest_exponent * (sum_roundoff(c.head_dim) + 4 * u) + sum_roundoff(c.sequence) + 8 * u};
  }

 private:
  static void add(Gradient& g, size_t at, double value, double size) {
    g.dqkv[at] += value;
    g.size[at] += size;
  }
  template <class F>
  void for_each_query(F&& visit) const {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.sequence; ++i)
          visit(b, h, i, starts.empty() ? 0 : starts[size_t(b * c.sequence + i)]);
      }
    }
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(c.head_dim)); }
  size_t q_at(int64_t b, int64_t h, int64_t t) const {
    return size_t((b * c.sequence + t) * c.layout().row() + h * c.head_dim);
  }
  size_t k_at(int64_t b, int64_t h, int64_t t) const { return q_at(b, c.heads + h / c.group(), t); }
  size_t v_at(int64_t b, int64_t h, int64_t t) const {
    return q_at(b, c.heads + c.kv_heads + h / c.group(), t);
  }
  size_t o_at(int64_t b, int64_t h, int64_t t) const {
    return size_t(((b * c.sequence + t) * c.heads + h) * c.head_dim);
  }
  size_t p_at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return size_t(((b * c.heads + h) * c.sequence + i) * c.sequence + j);
  }
};

/// Tensors of one case on a device, and the two calls.
struct Problem {
  Problem(Stream& stream, DType dtype, const Case& c, std::span<const float> qkv_values, bool documents,
          cuda::FusedAttention* fused = nullptr)
      : c(c),
        qkv(stream, dtype, {c.tokens(), c.layout().row()}, qkv_values),
        out(stream, dtype, {c.tokens(), c.heads * c.head_dim}),
        lse(stream, DType::f32, {c.batch, c.heads, c.sequence}),
        dout(stream, dtype, {c.tokens(), c.heads * c.head_dim}),
        dqkv(stream, dtype, {c.tokens(), c.layout().row()}),
        starts(stream, DType::i32, {c.tokens()}),
        documents(documents),
        fused(fused) {
    starts.upload_as<int32_t>(document_starts(c));
  }
  void forward(Stream& stream) {
    DeviceBuffer workspace(stream, DType::u8, {bytes(stream, Pass::forward)});
    attention_forward(stream, {.qkv = qkv,
                               .out = out,
                               .lse = lse,
                               .document_start = documents ? starts.tensor() : Tensor{},
                               .workspace = workspace,
                               .heads = c.layout(),
                               .batch = c.batch,
                               .sequence = c.sequence,
                               .fused = fused});
  }
  void backward(Stream& stream) {
    DeviceBuffer workspace(stream, DType::u8, {bytes(stream, Pass::backward)});
    attention_backward(stream, {.qkv = qkv,
                                .out = out,
                                .lse = lse,
                                .dout = dout,
                                .dqkv = dqkv,
                                .document_start = documents ? starts.tensor() : Tensor{},
                                .workspace = workspace,
                                .heads = c.layout(),
                                .batch = c.batch,
                                .sequence = c.sequence,
                                .fused = fused});
  }
  int64_t bytes(Stream& stream, Pass pass) const {
    return attention_workspace_bytes(stream, pass, qkv.tensor().dtype, c.layout(), c.batch, c.sequence, fused);
  }

  Case c;
  DeviceBuffer qkv, out, lse, dout, dqkv, starts;
  bool documents;
  cuda::FusedAttention* fused;
};

void check_case(Stream& stream, DType dtype, const Case& c, bool documents, float deviation,
                cuda::FusedAttention* fused = nullptr) {
  INFO("B " << c.batch << " H " << c.heads << "/" << c.kv_heads << " D " << c.head_dim << " T " << c.sequence
            << " documents " << documents << " threads " << parallel_threads());
  auto qkv = normal_values(c.tokens() * c.layout().row(), 1, dtype, deviation);
  auto dout = normal_values(c.tokens() * c.heads * c.head_dim, 2, dtype);
  const Reference want(c, documents ? document_starts(c) : std::vector<int32_t>{}, as_double(qkv));
  Problem problem(stream, dtype, c, qkv, documents, fused);
  problem.dout.upload(dout);
  problem.forward(stream);
  auto out = problem.out.floats();
  check_close(out, want.out, want.allowed(dtype, c.sequence), want.out_size);
  std::vector<double> lse_size(want.lse.size(), 1.0);
  check_close(problem.lse.floats(), want.lse, want.allowed_lse(), lse_size);

  problem.backward(stream);
  const auto gradient = want.backward(as_double(qkv), as_double(dout), as_double(out));
  check_close(problem.dqkv.floats(), gradient.dqkv, want.allowed(dtype, c.group() * c.sequence),
              gradient.size);
}

}  // namespace

TEST_CASE("attention: the FP64 reference's backward is the derivative of its forward") {
  for (bool documents : {false, true}) {
    const Case c{1, 2, 1, 8, 9};
    const auto starts = documents ? document_starts(c) : std::vector<int32_t>{};
    auto qkv = as_double(normal_values(c.tokens() * c.layout().row(), 1));
    auto dout = as_double(normal_values(c.tokens() * c.heads * c.head_dim, 2));
    const Reference at(c, starts, qkv);
    check_gradient([&](const std::vector<double>& x) { return dot(Reference(c, starts, x).out, dout); }, qkv,
                   at.backward(qkv, dout, at.out).dqkv);
  }
}

TEST_CASE("attention agrees with the reference, forward and backward") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Case& c : kCases) {
      if (!runs_on(stream, c)) continue;
      check_case(stream, dtype, c, false, 1.0f);
      check_case(stream, dtype, c, true, 1.0f);
    }
  });
}

/// cuDNN's attention, where the binary, the machine and the device have it.
std::unique_ptr<cuda::FusedAttention> fused_on(Device device) {
  if (device.type != DeviceType::cuda || !cuda::cudnn_is_built()) return nullptr;
  try {
    return std::make_unique<cuda::FusedAttention>(device.index);
  } catch (const DeviceError& error) {
    WARN(error.what());
    return nullptr;
  }
}

TEST_CASE("cuDNN's attention agrees with the reference and repeats bitwise, and its lse is ours") {
  for (Device device : devices()) {
    const auto fused = fused_on(device);
    if (!fused) continue;
    Stream stream = stream_on(device);
    for (const Case& c : kCases) {
      if (!runs_on(stream, c)) continue;
      check_case(stream, DType::bf16, c, false, 1.0f, fused.get());
      auto qkv = normal_values(c.tokens() * c.layout().row(), 1, DType::bf16);
      auto dout = normal_values(c.tokens() * c.heads * c.head_dim, 2, DType::bf16);
      Problem theirs(stream, DType::bf16, c, qkv, false, fused.get()), ours(stream, DType::bf16, c, qkv, false);
      std::vector<float> first;
      for (int run = 0; run < 2; ++run) {
        theirs.dout.upload(dout);
        theirs.forward(stream);
        theirs.backward(stream);
        if (run == 0) first = theirs.dqkv.floats();
      }
      CHECK(first == theirs.dqkv.floats());
      ours.forward(stream);
      const auto a = theirs.lse.floats(), b = ours.lse.floats();
      for (size_t i = 0; i < a.size(); ++i) REQUIRE(a[i] == Approx(b[i]).margin(2e-2));
    }
    const size_t planned = fused->size();
    fused->latch();
    check_case(stream, DType::bf16, kCases[1], false, 1.0f, fused.get());
    CHECK(fused->size() == planned);
    CHECK_THROWS_WITH(fused->workspace_bytes({.pass = Pass::forward, .heads = {1, 1, 16}, .batch = 3, .sequence = 5}),
                      "[attention] 3 sequences of 5 tokens were not planned with cuDNN before the first step");
  }
}

TEST_CASE("what cuDNN's attention does not take is refused") {
  for (Device device : devices()) {
    const auto fused = fused_on(device);
    if (!fused) continue;
    Stream stream = stream_on(device);
    const Case c{1, 2, 1, 16, 40};
    const auto values = normal_values(c.tokens() * c.layout().row(), 1);
    Problem wide(stream, DType::f32, c, values, false, fused.get()), documents(stream, DType::bf16, c, values, true, fused.get()),
        good(stream, DType::bf16, c, values, false, fused.get());
    CHECK_THROWS_WITH(wide.forward(stream), Catch::Contains("[attention_forward] qkv is f32") && Catch::Contains("cuDNN's attention is bf16"));
    CHECK_THROWS_WITH(documents.backward(stream), "[attention_backward] cuDNN's attention has no documents: use flash attention");
    const AttentionBackward args{.qkv = good.qkv, .out = good.out, .lse = good.lse, .dout = good.dout, .dqkv = good.dqkv, .document_start = {},
                                 .workspace = {}, .heads = c.layout(), .batch = 1, .sequence = 40, .fused = fused.get()};
    if (good.bytes(stream, Pass::backward) > 0) {
      CHECK_THROWS_WITH(attention_backward(stream, args), Catch::Contains("[attention_backward] workspace is ") && Catch::Contains("for cuDNN"));
    }
  }
}

TEST_CASE("attention with scores far apart rescales its sums") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    check_case(stream, dtype, {1, 2, 2, 16, 600}, false, 5.0f);
  });
}

TEST_CASE(
    "attention agrees with the reference for any number of threads, also when they share one pair of heads") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for_each_thread_count([&](int) {
      check_case(stream, dtype, {1, 2, 1, 16, 600}, false, 1.0f);
      check_case(stream, dtype, {1, 2, 1, 16, 600}, true, 1.0f);
    });
  });
}

TEST_CASE("attention repeats bitwise") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Case& c : {Case{2, 4, 2, 16, 300}, Case{1, 2, 1, 16, 600}}) {
      Problem problem(stream, dtype, c, normal_values(c.tokens() * c.layout().row(), 1), false);
      problem.dout.upload(normal_values(c.tokens() * c.heads * c.head_dim, 2));
      std::vector<float> same_for_all_threads;
      for_each_thread_count([&](int) {
        std::vector<float> first;
        for (int repetition = 0; repetition < 3; ++repetition) {
          problem.forward(stream);
          problem.backward(stream);
          auto all = problem.out.floats();
          if (same_for_all_threads.empty()) same_for_all_threads = all;
          CHECK(std::memcmp(all.data(), same_for_all_threads.data(), all.size() * sizeof(float)) == 0);
          for (const DeviceBuffer* part : {&problem.lse, &problem.dqkv}) {
            auto values = part->floats();
            all.insert(all.end(), values.begin(), values.end());
          }
          if (first.empty()) first = all;
          CHECK(std::memcmp(all.data(), first.data(), all.size() * sizeof(float)) == 0);
        }
      });
    }
  });
}

TEST_CASE("attention never sees later tokens or other documents") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const Case c{1, 2, 1, 16, 400};
    const int64_t row = c.layout().row(), changed = 300;
    auto qkv = normal_values(c.tokens() * row, 1);
    Problem plain(stream, dtype, c, qkv, false), separate(stream, dtype, c, qkv, true);
    plain.forward(stream);
    separate.forward(stream);
    auto before = plain.out.floats(), before_separate = separate.out.floats();
    // Later tokens change: earlier outputs do not.
    auto later = qkv;
    for (size_t i = size_t(changed * row); i < later.size(); ++i) later[i] += 1.0f;
    plain.qkv.upload(later);
    plain.forward(stream);
    auto after = plain.out.floats();
    const auto earlier = static_cast<size_t>(changed * c.heads * c.head_dim);
    CHECK(std::memcmp(before.data(), after.data(), earlier * sizeof(float)) == 0);
    CHECK(before != after);
    // Earlier documents change (positions below 96): the last document's outputs do not.
    auto other = qkv;
    for (size_t i = 0; i < size_t(96 * row); ++i) other[i] += 1.0f;
    separate.qkv.upload(other);
    separate.forward(stream);
    auto after_separate = separate.out.floats();
    const auto last = static_cast<size_t>(96 * c.heads * c.head_dim);
    CHECK(std::memcmp(&before_separate[last], &after_separate[last],
                      (before_separate.size() - last) * sizeof(float)) == 0);
    CHECK(before_separate != after_separate);
  });
}

TEST_CASE("attention reports a NaN instead of hiding it") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const Case c{1, 1, 1, 16, 300};
    auto qkv = normal_values(c.tokens() * c.layout().row(), 1);
    qkv[size_t(200 * c.layout().row())] = NAN;  // a query
    Problem problem(stream, dtype, c, qkv, false);
    problem.forward(stream);
    auto out = problem.out.floats();
    for (int64_t e = 0; e < c.head_dim; ++e) CHECK(std::isnan(out[size_t(200 * c.head_dim + e)]));
    CHECK(std::isnan(problem.lse.floats()[200]));
    CHECK_FALSE(std::isnan(out[size_t(199 * c.head_dim)]));
  });
}

TEST_CASE("attention_decode gives the last row of attention_forward") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Case& c : {Case{2, 4, 2, 16, 1}, Case{2, 4, 2, 24, 65}, Case{1, 2, 2, 64, 200}}) {
      if (!runs_on(stream, c)) continue;
      INFO("D " << c.head_dim << " length " << c.sequence);
      const int64_t width = c.heads * c.head_dim, kv_width = c.kv_heads * c.head_dim,
                    capacity = c.sequence + 3;
      auto qkv = normal_values(c.tokens() * c.layout().row(), 1, dtype);
      const Reference all(c, {}, as_double(qkv));
      std::vector<float> q, keys(size_t(c.batch * capacity * kv_width), NAN), values = keys;
      std::vector<double> want, size;
      for (int64_t b = 0; b < c.batch; ++b) {
        for (int64_t t = 0; t < c.sequence; ++t) {
          const float* row = &qkv[size_t((b * c.sequence + t) * c.layout().row())];
          std::copy_n(row + width, kv_width, &keys[size_t((b * capacity + t) * kv_width)]);
          std::copy_n(row + width + kv_width, kv_width, &values[size_t((b * capacity + t) * kv_width)]);
          if (t + 1 < c.sequence) continue;
          q.insert(q.end(), row, row + width);
          const auto at = (b * c.sequence + t) * width;
          want.insert(want.end(), all.out.begin() + at, all.out.begin() + at + width);
          size.insert(size.end(), all.out_size.begin() + at, all.out_size.begin() + at + width);
        }
      }
      DeviceBuffer q_buffer(stream, dtype, {c.batch, width}, q),
          keys_buffer(stream, dtype, {c.batch, capacity, kv_width}, keys),
          values_buffer(stream, dtype, {c.batch, capacity, kv_width}, values),
          out(stream, dtype, {c.batch, width});
      attention_decode(stream, {.q = q_buffer,
                                .keys = keys_buffer,
                                .values = values_buffer,
                                .out = out,
                                .heads = c.layout(),
                                .length = c.sequence});
      check_close(out.floats(), want, all.allowed(dtype, c.sequence), size);
    }
  });
}

TEST_CASE("attention's workspace grows with threads, not with the square of the sequence") {
  Stream stream = Stream::cpu();
  const AttentionHeads heads{8, 8, 64};
  for (Pass pass : {Pass::forward, Pass::backward}) {
    const int64_t small = attention_workspace_bytes(stream, pass, DType::bf16, heads, 8, 1024);
    const int64_t large = attention_workspace_bytes(stream, pass, DType::bf16, heads, 8, 4096);
    CHECK(large <= 4 * small);
  }
}

TEST_CASE("attention on meta records the FLOPs of what is computed") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const AttentionHeads heads{4, 2, 16};
  const Tensor qkv = shape_only(DType::bf16, {2 * 10, heads.row()}),
               out = shape_only(DType::bf16, {2 * 10, 64}), lse = shape_only(DType::f32, {2, 4, 10});
  const double pairs = 2 * 4 * 55, qkv_bytes = 20 * 128 * 2, out_bytes = 20 * 64 * 2, lse_bytes = 80 * 4;
  attention_forward(stream, {.qkv = qkv, .out = out, .lse = lse, .heads = heads, .batch = 2, .sequence = 10});
  CHECK(recorder.flops(Precision::bf16) == 4 * 16 * pairs);
  CHECK(recorder.bytes() == qkv_bytes + out_bytes + lse_bytes);
  attention_backward(stream, {.qkv = qkv,
                              .out = out,
                              .lse = lse,
                              .dout = out,
                              .dqkv = qkv,
                              .heads = heads,
                              .batch = 2,
                              .sequence = 10});
  CHECK(recorder.flops(Precision::bf16) == 14 * 16 * pairs);
  CHECK(recorder.bytes() == 3 * qkv_bytes + 3 * out_bytes + 2 * lse_bytes);
  recorder.clear();
  const Tensor q = shape_only(DType::f32, {2, 64}), cache = shape_only(DType::f32, {2, 32, 32});
  attention_decode(stream, {.q = q, .keys = cache, .values = cache, .out = q, .heads = heads, .length = 10});
  CHECK(recorder.flops(Precision::fp32) == 4.0 * 2 * 64 * 10);
  CHECK(recorder.bytes() == 2.0 * 2 * 32 * 10 * 4);
}

TEST_CASE("attention refuses what does not fit, and says what") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const AttentionHeads heads{4, 2, 16};
  const Tensor qkv = shape_only(DType::bf16, {20, 128}), out = shape_only(DType::bf16, {20, 64}),
               lse = shape_only(DType::f32, {2, 4, 10}), starts = shape_only(DType::i32, {20});
  const AttentionForward forward{.qkv = qkv,
                                 .out = out,
                                 .lse = lse,
                                 .document_start = starts,
                                 .heads = heads,
                                 .batch = 2,
                                 .sequence = 10};
  auto says = [&](auto&& change, const std::string& message) {
    AttentionForward args = forward;
    change(args);
    CHECK_THROWS_WITH(attention_forward(stream, args), "[attention_forward] " + message);
    CHECK_THROWS_AS(attention_forward(stream, args), ShapeError);
  };
  attention_forward(stream, forward);
  says([](auto& a) { a.heads.kv_heads = 3; },
       "4 heads cannot share 3 key heads: the first must be a multiple of the second");
  says([](auto& a) { a.heads.heads = 0; },
       "0 heads cannot share 2 key heads: the first must be a multiple of the second");
  says([](auto& a) { a.heads.head_dim = 12; }, "head dimension is 12, expected a multiple of 8 up to 512");
  says([](auto& a) { a.heads.head_dim = 1024; },
       "head dimension is 1024, expected a multiple of 8 up to 512");
  says([](auto& a) { a.sequence = 0; }, "batch 2 and sequence 0: both must be at least 1");
  says([](auto& a) { a.qkv.dtype = DType::u8; }, "qkv is u8 [20, 128], expected f32 or bf16");
  says([](auto& a) { a.qkv.shape = {20, 64}; }, "qkv is bf16 [20, 64], expected bf16 [20, 128]");
  says([](auto& a) { a.out.dtype = DType::f32; }, "out is f32 [20, 64], expected bf16 [20, 64]");
  says([](auto& a) { a.lse.shape = {20, 4}; }, "lse is f32 [20, 4], expected f32 [2, 4, 10]");
  says([](auto& a) { a.document_start.shape = {2, 10}; }, "document_start is i32 [2, 10], expected i32 [20]");

  const AttentionBackward backward{.qkv = qkv,
                                   .out = out,
                                   .lse = lse,
                                   .dout = out,
                                   .dqkv = qkv,
                                   .heads = heads,
                                   .batch = 2,
                                   .sequence = 10};
  auto backward_says = [&](auto&& change, const std::string& message) {
    AttentionBackward args = backward;
    change(args);
    CHECK_THROWS_WITH(attention_backward(stream, args), "[attention_backward] " + message);
  };
  attention_backward(stream, backward);
  backward_says([](auto& a) { a.qkv.shape = {20, 64}; }, "qkv is bf16 [20, 64], expected bf16 [20, 128]");
  backward_says([](auto& a) { a.dout.dtype = DType::f32; },
                "dout is f32 [20, 64], expected bf16 [20, 64] (like out)");
  backward_says(
      [](auto& a) {
        a.dqkv.shape = {20, 64};
      },
      "dqkv is bf16 [20, 64], expected bf16 [20, 128] (like qkv)");

  const Tensor q = shape_only(DType::bf16, {2, 64}), cache = shape_only(DType::bf16, {2, 32, 32});
  const AttentionDecode decode{
      .q = q, .keys = cache, .values = cache, .out = q, .heads = heads, .length = 10};
  auto decode_says = [&](auto&& change, const std::string& message) {
    AttentionDecode args = decode;
    change(args);
    CHECK_THROWS_WITH(attention_decode(stream, args), "[attention_decode] " + message);
  };
  attention_decode(stream, decode);
  decode_says([](auto& a) { a.heads.head_dim = 4; },
              "head dimension is 4, expected a multiple of 8 up to 512");
  decode_says([](auto& a) { a.q.dtype = DType::u8; }, "q is u8 [2, 64], expected f32 or bf16");
  decode_says([](auto& a) { a.keys.shape = {64, 32}; }, "keys is bf16 [64, 32], expected [B, capacity, 32]");
  decode_says([](auto& a) { a.q.shape = {3, 64}; }, "q is bf16 [3, 64], expected bf16 [2, 64]");
  decode_says(
      [](auto& a) {
        a.keys.shape = {2, 32, 16};
      },
      "keys is bf16 [2, 32, 16], expected bf16 [2, 32, 32]");
  decode_says([](auto& a) { a.values.dtype = DType::f32; },
              "values is f32 [2, 32, 32], expected bf16 [2, 32, 32] (like keys)");
  decode_says([](auto& a) { a.out.shape = {2, 32}; }, "out is bf16 [2, 32], expected bf16 [2, 64] (like q)");
  decode_says([](auto& a) { a.length = 33; }, "length is 33, expected 1 to the cache's capacity 32");
  decode_says([](auto& a) { a.length = 0; }, "length is 0, expected 1 to the cache's capacity 32");

  CHECK_THROWS_WITH(attention_workspace_bytes(stream, Pass::forward, DType::u8, heads, 2, 10),
                    "[attention_workspace_bytes] qkv is u8 [20, 128], expected f32 or bf16");
  CHECK_THROWS_WITH(attention_workspace_bytes(stream, Pass::forward, DType::bf16, heads, 0, 10),
                    "[attention_workspace_bytes] batch 0 and sequence 10: both must be at least 1");
  CostRecorder for_gpu;
  Stream planned = Stream::meta(for_gpu, {DeviceType::cuda, 0});
  CHECK_THROWS_WITH(attention_workspace_bytes(planned, Pass::forward, DType::bf16, {4, 2, 24}, 2, 10),
                    "[attention_workspace_bytes] head dimension is 24, expected 16, 32, 64 or 128 on cuda");
}

TEST_CASE("attention without enough workspace says how much it needs") {
  Stream stream = Stream::cpu();
  const Case c{1, 2, 1, 16, 40};
  Problem problem(stream, DType::bf16, c, normal_values(c.tokens() * c.layout().row(), 1), false);
  for (Pass pass : {Pass::forward, Pass::backward}) {
    const int64_t needed = problem.bytes(stream, pass);
    auto call = [&](Tensor workspace) {
      if (pass == Pass::forward) {
        attention_forward(stream, {.qkv = problem.qkv,
                                   .out = problem.out,
                                   .lse = problem.lse,
                                   .workspace = workspace,
                                   .heads = c.layout(),
                                   .batch = 1,
                                   .sequence = 40});
      } else {
        attention_backward(stream, {.qkv = problem.qkv,
                                    .out = problem.out,
                                    .lse = problem.lse,
                                    .dout = problem.dout,
                                    .dqkv = problem.dqkv,
                                    .workspace = workspace,
                                    .heads = c.layout(),
                                    .batch = 1,
                                    .sequence = 40});
      }
    };
    const std::string op = pass == Pass::forward ? "[attention_forward] " : "[attention_backward] ";
    const std::string expected = ", expected u8 with at least " + std::to_string(needed) +
                                 " elements: attention_workspace_bytes says how many";
    DeviceBuffer enough(stream, DType::u8, {needed + 64}), small(stream, DType::u8, {needed - 1});
    CHECK_THROWS_WITH(call({}), op + "workspace is f32 []" + expected);
    CHECK_THROWS_WITH(call(small), op + "workspace is u8 [" + std::to_string(needed - 1) + "]" + expected);
    CHECK_THROWS_AS(call(small), MemoryError);
    CHECK_THROWS_WITH(call(enough.tensor().slice(1, needed + 1)),
                      Catch::Matchers::StartsWith(op + "workspace at 0x") &&
                          Catch::Matchers::EndsWith(" is not aligned to 64 bytes"));
    call(enough);
  }
}
