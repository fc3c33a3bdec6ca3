#include "core/ops/matmul/matmul_pairs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <vector>

#include "core/cpu/bf16_products.h"
#include "core/cpu/matmul_cache.h"
#include "core/ops/matmul/matmul.h"
#include "core/threads/parallel_for.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/skip.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;
using cpu::GemmProblem;
using Stored = GemmProblem::Stored;

namespace {

constexpr int64_t kBeside = 3;  // columns of C that are not the product's

/// Operands, and what the product is by its definition.
struct Example {
  explicit Example(GemmProblem problem)
      : p(problem),
        a(normal_values(p.m * p.k, 1, DType::bf16)),
        b(normal_values(p.k * p.n, 2, DType::bf16)),
        before(normal_values(p.m * (p.n + kBeside), 3, p.output)) {
    p.input = DType::bf16;
    p.lda = p.a == Stored::transposed ? p.m : p.k;
    p.ldb = p.b == Stored::transposed ? p.k : p.n;
    p.ldc = p.n + kBeside;
    b_by_terms = b;
    for (int64_t k = 0; p.b == Stored::transposed && k < p.k; ++k) {
      for (int64_t j = 0; j < p.n; ++j)
        b_by_terms[static_cast<size_t>(k * p.n + j)] = b[static_cast<size_t>(j * p.k + k)];
    }
  }

  float at_a(int64_t i, int64_t k) const {
    return a[static_cast<size_t>(p.a == Stored::transposed ? k * p.m + i : i * p.k + k)];
  }

  std::vector<float> run(const float* scale) const {
    Stream stream = Stream::cpu();
    DeviceBuffer of_a(stream, DType::bf16, {p.m * p.k}, a), of_b(stream, DType::bf16, {p.k * p.n}, b),
        c(stream, p.output, {p.m, p.ldc}, before),
        workspace(stream, DType::u8, {cpu::matmul_pairs_workspace_bytes(p)});
    cpu::matmul_pairs(p, of_a.tensor().data, of_b.tensor().data, c.tensor().data, scale,
                      workspace.tensor().data);
    return c.floats();
  }

  void check(const std::vector<float>& got, float scale) const {
    const bool adds = p.result == GemmProblem::Result::accumulate;
    std::vector<double> want(got.size()), size(got.size());
    const int64_t every = p.m * p.n > 100000 ? 11 : 1;  // of a large result one row in eleven
    for (int64_t i = 0; i < p.m; ++i) {
      const auto row = static_cast<size_t>(i * p.ldc), n = static_cast<size_t>(p.n);
      for (size_t j = n; j < static_cast<size_t>(p.ldc); ++j) {
        REQUIRE(got[row + j] == before[row + j]);
        want[row + j] = before[row + j];
      }
      if (i % every != 0) {
        std::copy_n(&got[row], n, &want[row]);
        continue;
      }
      for (int64_t k = 0; k < p.k; ++k) {
        const double left = at_a(i, k);
        for (size_t j = 0; j < n; ++j) {
          const double term = left * b_by_terms[static_cast<size_t>(k) * n + j] * scale;
          want[row + j] += term;
          size[row + j] += std::abs(term);
        }
      }
      for (size_t j = 0; adds && j < n; ++j) {
        want[row + j] += before[row + j];
        size[row + j] += std::abs(before[row + j]);
      }
    }
    check_close(got, want, tolerance(p.output, 1, p.k), size);
  }

  GemmProblem p;
  std::vector<float> a, b, before;
  std::vector<float> b_by_terms;  ///< [k,n]: the definition reads it in this order
};

/// Rows and columns at the ends of panels and blocks, terms at the ends of panels and chunks. The last two
/// have more terms than AMX packs as a whole, stored by terms and by rows; the result of the first of these
/// does not fit in one thread's cache, but in those of two. Without AMX they have two chunks, of which A is
/// packed as a whole, and three, of which it is packed again for each 2048 columns.
std::vector<GemmProblem> problems() {
  std::vector<GemmProblem> found;
  for (Stored a : {Stored::plain, Stored::transposed}) {
    for (Stored b : {Stored::plain, Stored::transposed}) {
      for (auto [m, n, k] : {std::array<int64_t, 3>{64, 64, 64},
                             {96, 608, 80},
                             {288, 96, 592},
                             {320, 1088, 2080},
                             {64, 2112, 4112}}) {
        // Only what is stored by rows may end within a tile, and both within a panel.
        m += a == Stored::plain ? 5 : m % 96 == 0 ? 16 : 0;
        n += b == Stored::transposed ? 7 : m % 32 == 0 ? 16 : 0;
        found.push_back({.a = a, .b = b, .m = m, .n = n, .k = k});
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("products of pairs agree with their definition, stored, scaled, added and rounded in every way") {
  if (!cpu::multiplies_bf16_directly()) return skip("there are no bf16 instructions");
  for (const GemmProblem& problem : problems()) {
    INFO("m " << problem.m << " n " << problem.n << " k " << problem.k << " stored "
              << static_cast<int>(problem.a) << static_cast<int>(problem.b));
    const float scale = 0.37f;
    for (const auto& [output, result, with] : {std::tuple{DType::f32, GemmProblem::Result::overwrite, false},
                                               {DType::f32, GemmProblem::Result::accumulate, true},
                                               {DType::bf16, GemmProblem::Result::overwrite, true}}) {
      GemmProblem p = problem;
      p.output = output;
      p.result = result;
      const Example example(p);
      REQUIRE(cpu::pairs_take(example.p));
      set_parallel_threads(1);
      const std::vector<float> alone = example.run(with ? &scale : nullptr);
      example.check(alone, with ? scale : 1.0f);
      for (int threads : {2, 3, 8}) {
        set_parallel_threads(threads);
        CHECK(example.run(with ? &scale : nullptr) == alone);
      }
    }
  }
  set_parallel_threads(1);
}

TEST_CASE("a gradient of weights is summed in the threads' caches where its parts fit there") {
  const auto fits = [](int64_t m, int64_t n, Stored a, int threads) {
    set_parallel_threads(threads);
    const bool does = cpu::pairs_sum_in_cache({.a = a, .b = Stored::plain, .m = m, .n = n, .k = 4096});
    set_parallel_threads(1);
    return does;
  };
  CHECK(fits(640, 512, Stored::transposed, 1));
  CHECK_FALSE(fits(640, 544, Stored::transposed, 1));
  CHECK_FALSE(fits(640, 512, Stored::plain, 1));
  CHECK(fits(1280, 512, Stored::transposed, 2));
  CHECK(fits(512, 1280, Stored::transposed, 2));
  CHECK_FALSE(fits(1280, 1024, Stored::transposed, 3));  // in one direction: 427 rows are 448
  CHECK(fits(1280, 1024, Stored::transposed, 4));
  CHECK(fits(256, 256, Stored::transposed, 2));
  CHECK_FALSE(fits(256, 256, Stored::transposed, 16));  // blocks of 64 x 64: mostly packing
}

TEST_CASE("products that are not multiplied in pairs are known as such") {
  if (!cpu::multiplies_bf16_directly()) return skip("there are no bf16 instructions");
  const GemmProblem good{.input = DType::bf16, .b = Stored::transposed, .m = 100, .n = 100, .k = 112};
  const auto takes = [&](auto&& change) {
    GemmProblem p = good;
    change(p);
    return cpu::pairs_take(p);
  };
  CHECK(takes([](GemmProblem&) {}));
  CHECK_FALSE(takes([](GemmProblem& p) { p.input = DType::f32; }));
  CHECK_FALSE(takes([](GemmProblem& p) { p.k = 120; }));
  CHECK_FALSE(takes([](GemmProblem& p) { p.m = 63; }));
  CHECK_FALSE(takes([](GemmProblem& p) { p.b = Stored::plain; }));
  CHECK_FALSE(takes([](GemmProblem& p) { p.a = Stored::transposed; }));
  const auto by_terms = [&](int64_t m, int64_t n) {
    return cpu::pairs_take(
        {.input = DType::bf16, .a = Stored::transposed, .b = Stored::plain, .m = m, .n = n, .k = 100});
  };
  CHECK(by_terms(96, 112));
  CHECK(by_terms(112, 96));
  CHECK_FALSE(by_terms(112, 112));
  CHECK_FALSE(by_terms(96, 104));
}

TEST_CASE("a large product of bf16 is multiplied in pairs wherever bf16 is multiplied directly") {
  if (!cpu::multiplies_bf16_directly()) return skip("there are no bf16 instructions");
  constexpr int64_t kN = 2048, kO = 1024, kK = 1024;  // 4.3 GFLOP
  Stream stream = Stream::cpu();
  DeviceBuffer x(stream, DType::bf16, {kN, kK}), w(stream, DType::bf16, {kO, kK}),
      y(stream, DType::bf16, {kN, kO}), dw(stream, DType::f32, {kO, kK});
  CHECK(
      matmul_workspace_bytes(stream, {.kind = MatmulKind::forward, .a = x, .b = w, .out = y}) ==
      cpu::matmul_pairs_workspace_bytes(
          {.input = DType::bf16, .output = DType::bf16, .b = Stored::transposed, .m = kN, .n = kO, .k = kK}));
  CHECK(matmul_workspace_bytes(stream, {.kind = MatmulKind::input_gradient, .a = y, .b = w, .out = x}) ==
        cpu::matmul_pairs_workspace_bytes(
            {.input = DType::bf16, .output = DType::bf16, .m = kN, .n = kK, .k = kO}));
  CHECK(matmul_workspace_bytes(stream, {.kind = MatmulKind::weight_gradient, .a = y, .b = x, .out = dw}) ==
        cpu::matmul_pairs_workspace_bytes(
            {.input = DType::bf16, .a = Stored::transposed, .m = kO, .n = kK, .k = kN}));
}

TEST_CASE("a gradient of weights is multiplied in pairs from 1 GFLOP on") {
  if (!cpu::multiplies_bf16_directly()) return skip("there are no bf16 instructions");
  constexpr int64_t kN = 2048, kC = 512;
  set_parallel_threads(1);
  Stream stream = Stream::cpu();
  DeviceBuffer x(stream, DType::bf16, {kN, kC}), dw(stream, DType::f32, {kC, kC});
  CHECK(matmul_workspace_bytes(stream, {.kind = MatmulKind::weight_gradient, .a = x, .b = x, .out = dw}) ==
        cpu::matmul_pairs_workspace_bytes(
            {.input = DType::bf16, .a = Stored::transposed, .m = kC, .n = kC, .k = kN}));
}

TEST_CASE("a large product of bf16 agrees with its definition, whatever multiplies it") {
  constexpr int64_t kN = 2048, kO = 2064, kK = 1024;  // 8.7 GFLOP
  Stream stream = Stream::cpu();
  const auto x = normal_values(kN * kK, 1, DType::bf16), w = normal_values(kO * kK, 2, DType::bf16);
  DeviceBuffer a(stream, DType::bf16, {kN, kK}, x), b(stream, DType::bf16, {kO, kK}, w),
      out(stream, DType::f32, {kN, kO});
  const Matmul args{.kind = MatmulKind::forward, .a = a, .b = b, .out = out};
  DeviceBuffer workspace(stream, DType::u8, {matmul_workspace_bytes(stream, args)});
  set_matmul_workspace(stream, workspace);
  matmul(stream, args);
  const auto got = out.floats();
  std::vector<float> some;
  std::vector<double> want, size;
  for (int64_t i = 0; i < kN; i += 97) {
    for (int64_t j = i % 89; j < kO; j += 89) {
      double sum = 0, all = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const double term =
            static_cast<double>(x[static_cast<size_t>(i * kK + k)]) * w[static_cast<size_t>(j * kK + k)];
        sum += term;
        all += std::abs(term);
      }
      some.push_back(got[static_cast<size_t>(i * kO + j)]);
      want.push_back(sum);
      size.push_back(all);
    }
  }
  check_close(some, want, tolerance(DType::f32, 1, kK), size);
}
