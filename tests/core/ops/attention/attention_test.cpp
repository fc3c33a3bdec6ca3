#include "core/ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/cpu/matmul_cache.h"
#include "core/cuda/runtime.h"
#include "tests/core/ops/attention/attention_problem.h"

using namespace ottava;
using namespace ottava::test;
using namespace ottava::test::attention;

namespace {

/// Each device and type, and on the CPU bf16 multiplied in the way that a stream does not take by itself,
/// where there are two.
template <class Body>
void for_each_way(Body&& body) {
  using enum cpu::Bf16Products;
  for_each_device_and_dtype(body);
  if (devices().front().is_gpu() || !cpu::multiplies_bf16_directly()) return;
  Stream stream = Stream::cpu();
  const bool is_direct = stream.matmul_cache().products().attention == direct;
  stream.matmul_cache().set_products({.attention = is_direct ? widened : direct});
  body(stream, DType::bf16);
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
  for_each_way([](Stream& stream, DType dtype) {
    for (const Case& c : kCases) {
      if (!runs_on(stream, c)) continue;
      check_case(stream, dtype, c, false, 1.0f);
      check_case(stream, dtype, c, true, 1.0f);
    }
  });
}

TEST_CASE("attention with scores far apart rescales its sums") {
  for_each_way([](Stream& stream, DType dtype) {
    check_case(stream, dtype, {1, 2, 2, 16, 600}, false, 5.0f);
  });
}

TEST_CASE("attention whose later scores would overflow beside a row's first ones agrees with the reference") {
  for_each_way([](Stream& stream, DType dtype) {
    for (const float growth : {8.0f, 256.0f}) {
      for (const Case& c : {Case{1, 2, 1, 16, 600}, Case{1, 1, 1, 64, 200}}) {
        for (bool documents : {false, true}) {
          auto qkv = normal_values(c.tokens() * c.layout().row(), 1, dtype);
          for (int64_t t = c.sequence / 2; t < c.sequence; ++t) {
            for (int64_t e = 0; e < c.kv_heads * c.head_dim; ++e)
              qkv[static_cast<size_t>(t * c.layout().row() + c.heads * c.head_dim + e)] *= growth;
          }
          check_values(stream, dtype, c, documents, qkv);
        }
      }
    }
  });
}

TEST_CASE("what a row of attention gives does not depend on how far another row's scores reach") {
  for_each_way([](Stream& stream, DType dtype) {
    const Case c{1, 1, 1, 16, 600};
    const int64_t row = c.layout().row(), changed = 500;
    auto qkv = normal_values(c.tokens() * row, 1);
    Problem problem(stream, dtype, c, qkv, false);
    problem.dout.upload(normal_values(c.tokens() * c.head_dim, 2));
    const auto other_rows = [&] {
      problem.qkv.upload(qkv);
      problem.forward(stream);
      problem.backward(stream);
      std::vector<float> values;
      const auto out = problem.out.floats(), dqkv = problem.dqkv.floats();
      for (int64_t t = 0; t < c.sequence; ++t) {
        if (t == changed) continue;
        values.insert(values.end(), &out[static_cast<size_t>(t * c.head_dim)],
                      &out[static_cast<size_t>(t * c.head_dim)] + c.head_dim);
        values.insert(values.end(), &dqkv[static_cast<size_t>(t * row)],
                      &dqkv[static_cast<size_t>(t * row)] + c.head_dim);
      }
      return values;
    };
    const auto before = other_rows();
    for (int64_t e = 0; e < c.head_dim; ++e) qkv[static_cast<size_t>(changed * row + e)] *= 300;
    const auto after = other_rows();
    CHECK(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0);
  });
}

TEST_CASE(
    "attention agrees with the reference for any number of threads, also when they share one pair of heads") {
  for_each_way([](Stream& stream, DType dtype) {
    for_each_thread_count([&](int) {
      check_case(stream, dtype, {1, 2, 1, 16, 600}, false, 1.0f);
      check_case(stream, dtype, {1, 2, 1, 16, 600}, true, 1.0f);
    });
  });
}

TEST_CASE("attention repeats bitwise") {
  for_each_way([](Stream& stream, DType dtype) {
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

TEST_CASE("attention's gradients of a sequence are the same bits beside others") {
  // Beside enough others a block owns a whole sequence, where head dimensions are 16: two on each SM. Threads
  // of a CPU divide a sequence that is alone, and add their parts.
  const int threads = parallel_threads();
  set_parallel_threads(1);
  for_each_way([](Stream& stream, DType dtype) {
    const int64_t others = stream.device().is_gpu() ? 2 * cuda::sm_count(stream.device().index) : 8;
    for (const int64_t sequence : {70, 600}) {
      for (const bool documents : {false, true}) {
        const Case one{1, 2, 1, 16, sequence}, many{others, 2, 1, 16, sequence};
        const auto qkv = normal_values(one.tokens() * one.layout().row(), 1),
                   dout = normal_values(one.tokens() * one.heads * one.head_dim, 2);
        const auto repeated = [&](const std::vector<float>& values) {
          std::vector<float> all;
          for (int64_t b = 0; b < many.batch; ++b) all.insert(all.end(), values.begin(), values.end());
          return all;
        };
        Problem alone(stream, dtype, one, qkv, documents),
            beside(stream, dtype, many, repeated(qkv), documents);
        alone.dout.upload(dout);
        beside.dout.upload(repeated(dout));
        for (Problem* problem : {&alone, &beside}) {
          problem->forward(stream);
          problem->backward(stream);
        }
        // Millions of numbers, of which a failure shall not print each.
        const std::vector<float> got = beside.dqkv.floats(), want = repeated(alone.dqkv.floats());
        REQUIRE(got.size() == want.size());
        size_t differing = 0;
        float apart = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          if (got[i] == want[i]) continue;
          ++differing;
          apart = std::max(apart, std::abs(got[i] - want[i]));
        }
        INFO("T " << sequence << " documents " << documents << ": the largest difference is " << apart);
        CHECK(differing == 0);
      }
    }
  });
  set_parallel_threads(threads);
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

TEST_CASE("attention of a sequence never reads the next one's tokens") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const Case c{2, 2, 1, 16, 37};
    const auto row = static_cast<size_t>(c.layout().row()), width = static_cast<size_t>(c.heads * c.head_dim);
    auto qkv = normal_values(c.tokens() * c.layout().row(), 1),
         dout = normal_values(c.tokens() * c.heads * c.head_dim, 2);
    Problem problem(stream, dtype, c, qkv, false);
    const auto first_sequence = [&] {
      problem.qkv.upload(qkv);
      problem.dout.upload(dout);
      problem.forward(stream);
      problem.backward(stream);
      auto values = problem.out.floats(), gradients = problem.dqkv.floats();
      values.resize(37 * width);
      values.insert(values.end(), gradients.begin(), gradients.begin() + static_cast<int64_t>(37 * row));
      return values;
    };
    const auto before = first_sequence();
    std::fill(qkv.begin() + static_cast<int64_t>(37 * row), qkv.end(), std::nanf(""));
    std::fill(dout.begin() + static_cast<int64_t>(37 * width), dout.end(), std::nanf(""));
    const auto after = first_sequence();
    CHECK(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) == 0);
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
