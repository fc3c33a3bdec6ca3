#include "core/ops/matmul/matmul.h"

#include <cmath>
#include <cstddef>

#include "core/cpu/matmul_cache.h"
#include "core/ops/matmul/matmul_kernels.h"
#include "core/threads/parallel_for.h"
#include "tests/core/ops/matmul/matmul_problem.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

// What the CPU multiplies by: oneDNN, and panels of our own.

using namespace ottava;
using namespace ottava::test;

namespace {

/// Results of one product, computed that way.
std::vector<float> product_of(cpu::Bf16Products way, MatmulKind kind, const Problem& p,
                              const std::vector<float>& a, const std::vector<float>& b,
                              const std::vector<float>* before = nullptr, DType result = DType::f32) {
  Stream stream = Stream::cpu();
  stream.matmul_cache().set_products({.matmul = way});
  DeviceBuffer a_buffer(stream, DType::bf16, p.a, a), b_buffer(stream, DType::bf16, p.b, b),
      out(stream, result, p.out);
  if (before) out.upload(*before);
  const Matmul args{.kind = kind, .a = a_buffer, .b = b_buffer, .out = out, .accumulate = before != nullptr};
  Workspace workspace(stream, args);
  matmul(stream, args);
  return out.floats();
}

}  // namespace

TEST_CASE("bf16 is multiplied directly or widened, to the same sums but for their order") {
  using cpu::Bf16Products;
  std::vector<Bf16Products> ways{Bf16Products::widened};
  if (cpu::multiplies_bf16_directly()) ways.push_back(Bf16Products::direct);
  for (Size s : kSizes) {
    for (MatmulKind kind : kKinds) {
      INFO("kind " << static_cast<int>(kind) << " N " << s.n << " O " << s.o << " K " << s.k);
      const Problem p = problem_of(kind, s);
      const auto a = normal_values(p.a.numel(), 1, DType::bf16),
                 b = normal_values(p.b.numel(), 2, DType::bf16);
      const Reference want = reference(kind, p, a, b);
      std::vector<std::vector<float>> results;
      for (Bf16Products way : ways) {
        results.push_back(product_of(way, kind, p, a, b));
        check_close(results.back(), want.product, tolerance(DType::f32, 1, p.terms), want.size);
      }
      const std::vector<double> first(results.front().begin(), results.front().end());
      check_close(results.back(), first, tolerance(DType::f32, 2, p.terms), want.size);
    }
  }
}

TEST_CASE(
    "a widened product has the same bits on any number of threads, and whatever is computed beside it") {
  using cpu::Bf16Products;
  for (Size s : kSizes) {
    for (MatmulKind kind : kKinds) {
      INFO("kind " << static_cast<int>(kind) << " N " << s.n << " O " << s.o << " K " << s.k);
      const Problem p = problem_of(kind, s);
      const auto a = normal_values(p.a.numel(), 1, DType::bf16),
                 b = normal_values(p.b.numel(), 2, DType::bf16), before = normal_values(p.out.numel(), 3);
      set_parallel_threads(1);
      const auto alone = product_of(Bf16Products::widened, kind, p, a, b, &before);
      for (int threads : {2, 3, 8}) {
        set_parallel_threads(threads);
        CHECK(product_of(Bf16Products::widened, kind, p, a, b, &before) == alone);
      }
      set_parallel_threads(1);
      if (kind == MatmulKind::weight_gradient) continue;
      // The last row of A as a product of its own.
      Problem one = p;
      one.a = {1, p.a[1]}, one.out = {1, p.out[1]};
      const std::vector<float> last(a.end() - p.a[1], a.end()),
          of_last(before.end() - p.out[1], before.end());
      const auto row = product_of(Bf16Products::widened, kind, one, last, b, &of_last);
      CHECK(std::equal(row.begin(), row.end(), alone.end() - p.out[1]));
    }
  }
}

TEST_CASE("a widened product of more terms than its panels hold at once") {
  // In f32 8 MiB of panels are 16,384 terms of all four, else 32 MiB all terms of one.
  const Size s{131072 + 300, 3, 100};
  const Problem p = problem_of(MatmulKind::weight_gradient, s);
  const auto a = normal_values(p.a.numel(), 1, DType::bf16), b = normal_values(p.b.numel(), 2, DType::bf16),
             before = normal_values(p.out.numel(), 3);
  Reference want = reference(MatmulKind::weight_gradient, p, a, b);
  const auto product = [&](DType result, const std::vector<float>* from) {
    return product_of(cpu::Bf16Products::widened, MatmulKind::weight_gradient, p, a, b, from, result);
  };
  check_close(product(DType::bf16, nullptr), want.product, tolerance(DType::bf16, 1, p.terms), want.size);
  check_close(product(DType::f32, nullptr), want.product, tolerance(DType::f32, 1, p.terms), want.size);
  for (size_t i = 0; i < before.size(); ++i) want.product[i] += static_cast<double>(before[i]);
  check_close(product(DType::f32, &before), want.product, tolerance(DType::f32, 1, p.terms), want.size);
}

TEST_CASE("a widened gradient of weights is summed by blocks in the threads' caches where they fit there") {
  const auto is_by_blocks = [](int64_t rows, int64_t cols, int threads, DType result = DType::f32,
                               MatmulKind kind = MatmulKind::weight_gradient) {
    const Problem p = problem_of(kind, {4096, rows, cols});
    set_parallel_threads(threads);
    const bool is = cpu::widens_gradient_by_blocks({.kind = kind,
                                                    .a = Tensor{nullptr, DType::bf16, p.a},
                                                    .b = Tensor{nullptr, DType::bf16, p.b},
                                                    .out = Tensor{nullptr, result, p.out}});
    set_parallel_threads(1);
    return is;
  };
  CHECK(is_by_blocks(640, 512, 1));
  CHECK_FALSE(is_by_blocks(641, 512, 1));
  CHECK(is_by_blocks(1280, 512, 2));
  CHECK(is_by_blocks(768, 256, 2));
  CHECK_FALSE(is_by_blocks(256, 256, 16));  // blocks of 64 x 64: mostly packing
  CHECK_FALSE(is_by_blocks(640, 512, 1, DType::bf16));
  CHECK_FALSE(is_by_blocks(640, 512, 1, DType::f32, MatmulKind::input_gradient));

  // Blocks of several parts of rows, in groups that end anywhere, against strips of panels.
  for (Size s : {Size{700, 499, 164}, Size{257, 250, 96}, Size{256, 225, 131}}) {
    INFO("N " << s.n << " O " << s.o << " K " << s.k);
    REQUIRE(is_by_blocks(s.o, s.k, 1));
    REQUIRE_FALSE(is_by_blocks(s.o, s.k, 64));
    const Problem p = problem_of(MatmulKind::weight_gradient, s);
    const auto a = normal_values(p.a.numel(), 1, DType::bf16), b = normal_values(p.b.numel(), 2, DType::bf16),
               before = normal_values(p.out.numel(), 3);
    const Reference want = reference(MatmulKind::weight_gradient, p, a, b);
    const auto product = [&](const std::vector<float>* from) {
      return product_of(cpu::Bf16Products::widened, MatmulKind::weight_gradient, p, a, b, from);
    };
    const auto alone = product(nullptr), added = product(&before);
    check_close(alone, want.product, tolerance(DType::f32, 1, p.terms), want.size);
    for (int threads : {2, 3, 64}) {
      set_parallel_threads(threads);
      CHECK(product(nullptr) == alone);
      CHECK(product(&before) == added);
    }
    set_parallel_threads(1);
  }
}

TEST_CASE("products without instructions for them are refused") {
  Stream stream = Stream::cpu();
  if (cpu::multiplies_bf16_directly()) {
    stream.matmul_cache().set_products({.matmul = cpu::Bf16Products::direct});
    CHECK(stream.matmul_cache().products().matmul == cpu::Bf16Products::direct);
  } else {
    CHECK_THROWS_WITH(
        stream.matmul_cache().set_products({.attention = cpu::Bf16Products::direct}),
        "[cpu] bf16 products are set to direct, but this machine has no bf16 instructions: use widened");
  }
}

TEST_CASE("products of bf16 are exact: sums of few bits come out without error") {
  for_each_device([](Stream& stream) {
    // Seven significant bits each: products have 14 bits, and 64 of them still fit the 24 bits of f32.
    const int64_t n = 33, o = 17, k = 64;
    std::vector<float> a(n * k), b(o * k);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 37 % 255) - 127);
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 91 % 255) - 127);
    DeviceBuffer a_buffer(stream, DType::bf16, {n, k}, a), b_buffer(stream, DType::bf16, {o, k}, b),
        out(stream, DType::f32, {n, o});
    const Matmul args{.kind = MatmulKind::forward, .a = a_buffer, .b = b_buffer, .out = out};
    Workspace workspace(stream, args);
    matmul(stream, args);
    CHECK(as_double(out.floats()) == reference(args.kind, problem_of(args.kind, {n, o, k}), a, b).product);
  });
}

TEST_CASE("a matrix of one row or column has the elements that its leading dimension says") {
  using Stored = cpu::GemmProblem::Stored;
  using Result = cpu::GemmProblem::Result;
  const std::vector<int64_t> extents{1, 2, 17};
  const auto integers = [](int64_t count, int64_t seed) {
    std::vector<float> x(static_cast<size_t>(count));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>((static_cast<int64_t>(i) * 37 + seed * 11) % 17 - 8);
    return x;
  };
  for (int64_t m : extents)
    for (int64_t n : extents)
      for (int64_t k : extents)
        for (const auto& [a, b] : {std::pair{Stored::plain, Stored::plain},
                                   {Stored::plain, Stored::transposed},
                                   {Stored::transposed, Stored::plain}})
          for (Result result : {Result::overwrite, Result::accumulate})
            for (int64_t gap : {0, 5}) {
              const bool at = a == Stored::transposed, bt = b == Stored::transposed;
              const cpu::GemmProblem p{.a = a,
                                       .b = b,
                                       .result = result,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .lda = (at ? m : k) + gap,
                                       .ldb = (bt ? k : n) + gap,
                                       .ldc = n + gap};
              INFO("m " << m << " n " << n << " k " << k << " transposed " << at << bt << " gap " << gap);
              const auto x = integers((at ? k : m) * p.lda, 1), y = integers((bt ? n : k) * p.ldb, 2);
              const auto before = integers(m * p.ldc, 3);
              std::vector<float> got = before, want = before;
              const cpu::Gemm gemm(p, 1, 1);
              CHECK(gemm.scratch_bytes() == cpu::gemm_scratch_bytes(p, 1));
              std::vector<std::max_align_t> scratch(
                  static_cast<size_t>(gemm.scratch_bytes()) / sizeof(std::max_align_t) + 8);
              void* aligned = scratch.data();
              size_t space = scratch.size() * sizeof(std::max_align_t);
              std::align(64, 1, aligned, space);
              gemm.run(0, x.data(), y.data(), got.data(), aligned);
              for (int64_t i = 0; i < m; ++i)
                for (int64_t j = 0; j < n; ++j) {
                  float sum = result == Result::accumulate ? want[static_cast<size_t>(i * p.ldc + j)] : 0;
                  for (int64_t q = 0; q < k; ++q)
                    sum += x[static_cast<size_t>(at ? q * p.lda + i : i * p.lda + q)] *
                           y[static_cast<size_t>(bt ? j * p.ldb + q : q * p.ldb + j)];
                  want[static_cast<size_t>(i * p.ldc + j)] = sum;
                }
              CHECK((got == want));  // small integers: exact; gaps are not written
            }
}

TEST_CASE("oneDNN's refusal of a product names the problem") {
  CHECK_THROWS_WITH(cpu::Gemm({.input = DType::u8, .m = 1, .n = 1, .k = 1}, 1, 1),
                    "[gemm] dtype is u8, expected f32 or bf16");
  CHECK_THROWS_WITH(
      cpu::Gemm({.output = DType::bf16, .m = -4, .n = 2, .k = 3, .lda = 3, .ldb = 2, .ldc = 2}, 1, 1),
      Catch::Matchers::Contains("refuses f32 x f32 -> bf16 with m -4, n 2, k 3"));
}

TEST_CASE("the backend names itself") {
  CHECK_THAT(matmul_backend_description(), Catch::Matchers::StartsWith("oneDNN "));
  const double flops = measure_multiplier_peak_flops();
  CHECK((flops > 0 && std::isfinite(flops)));
}
