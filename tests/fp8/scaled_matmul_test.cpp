#include "fp8/scaled_matmul.h"

#include <cmath>

#include "tests/fp8/scaled_matmul_operands.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;
using namespace ottava::test::scaled_matmul_operands;

namespace {

struct Case {
  const char* name;
  ReferenceRecipe a, b;
};
const Case kCases[] = {
    {"tensorwise forward", {DType::e4m3, Granularity::tensor}, {DType::e4m3, Granularity::tensor}},
    {"tensorwise backward", {DType::e5m2, Granularity::tensor}, {DType::e4m3, Granularity::tensor}},
    {"rowwise", {DType::e4m3, Granularity::row, true}, {DType::e4m3, Granularity::row, true}},
    {"rowwise, any scale", {DType::e4m3, Granularity::row}, {DType::e4m3, Granularity::row}},
    {"rowwise with tensorwise weight",
     {DType::e4m3, Granularity::row, true},
     {DType::e4m3, Granularity::tensor, true}},
    {"tensorwise with rowwise", {DType::e4m3, Granularity::tensor}, {DType::e4m3, Granularity::row}},
    {"blockwise forward",
     {DType::e4m3, Granularity::block_1x128, true},
     {DType::e4m3, Granularity::block_128x128, true}},
    {"blockwise weight gradient",
     {DType::e4m3, Granularity::block_1x128, true},
     {DType::e4m3, Granularity::block_1x128, true}},
    {"mxfp8", {DType::e4m3, Granularity::block_1x32, true}, {DType::e4m3, Granularity::block_1x32, true}},
};

double relative(const std::vector<float>& got, const Values& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("scaled_matmul equals the FP64 product of the dequantized operands, for every pair of scales") {
  for_each_way([](Stream& stream, bool emulate) {
    struct Size {
      int64_t m, n, k;
    };
    for (const Case& c : kCases) {
      for (Size s : {Size{16, 16, 32}, Size{48, 144, 160}, Size{32, 64, 416}}) {
        INFO(c.name << " " << s.m << " " << s.n << " " << s.k);
        Operand a(stream, normal_values(s.m * s.k, 1), s.m, s.k, c.a),
            b(stream, normal_values(s.n * s.k, 2), s.n, s.k, c.b);
        const ScaledMatmul args = product(MatmulKind::forward, a, b, emulate);
        if (refuses(stream, args, s.m, s.n)) continue;
        const Product want = exact_product(a.exact, b.exact, s.m, s.n, s.k);
        for (DType dtype : {DType::f32, DType::bf16}) {
          const auto got = run(stream, args, dtype, s.m, s.n);
          check_close(got, want.value, product_tolerance(stream, emulate, dtype, 3, s.k), want.magnitude);
        }
        const auto before = normal_values(s.m * s.n, 3);
        Values sum = want.value, magnitude = want.magnitude;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[i], magnitude[i] += std::abs(before[i]);
        check_close(
            run(stream, product(MatmulKind::weight_gradient, a, b, emulate), DType::f32, s.m, s.n, &before),
            sum, product_tolerance(stream, emulate, DType::f32, 4, s.k), magnitude);
      }
    }
  });
}

TEST_CASE(
    "scaled_matmul of operands that lie transposed in memory is the same product, where it is not refused") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t m = 32, n = 48, k = 288;
    const auto x = normal_values(m * k, 1), y = normal_values(n * k, 2);
    for (Granularity g : {Granularity::tensor, Granularity::block_128x128}) {
      const ReferenceRecipe recipe{DType::e4m3, g, true};
      const ReferenceRecipe left{DType::e4m3, g == Granularity::tensor ? g : Granularity::block_1x128, true};
      Operand a(stream, x, m, k, left), b(stream, y, n, k, recipe),
          outer_b(stream, y, n, k, recipe, Contraction::outer);
      const Product want = exact_product(a.exact, b.exact, m, n, k);
      const ScaledMatmul args = product(MatmulKind::input_gradient, a, outer_b, emulate);
      if (stream.type() == DeviceType::cuda && !emulate) {
        CHECK_THROWS_WITH(
            run(stream, args, DType::f32, m, n),
            "[scaled_matmul] b has its contraction outside, and a GPU multiplies FP8 only with both "
            "inside: transpose its codes, or emulate");
        continue;
      }
      const auto got = run(stream, args, DType::f32, m, n);
      check_close(got, want.value, product_tolerance(stream, emulate, DType::f32, 3, k), want.magnitude);
      if (g != Granularity::tensor) continue;
      Operand outer_a(stream, x, m, k, recipe, Contraction::outer);
      check_close(
          run(stream, product(MatmulKind::weight_gradient, outer_a, outer_b, emulate), DType::f32, m, n),
          want.value, product_tolerance(stream, emulate, DType::f32, 3, k), want.magnitude);
    }
  });
}

TEST_CASE("scaled_matmul of small integers is exact") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t m = 16, n = 32, k = 512;
    std::vector<float> a_values, b_values;
    for (int64_t i = 0; i < m * k; ++i) a_values.push_back(static_cast<float>(i * 7919 % 5) - 2);
    for (int64_t i = 0; i < n * k; ++i) b_values.push_back(static_cast<float>(i * 104729 % 5) - 2);
    for (const Case& c : kCases) {
      INFO(c.name);
      ReferenceRecipe a_recipe = c.a, b_recipe = c.b;
      a_recipe.power_of_two = b_recipe.power_of_two = true;  // so that scaling changes no digit
      Operand a(stream, a_values, m, k, a_recipe), b(stream, b_values, n, k, b_recipe);
      const Product want = exact_product(Values(a_values.begin(), a_values.end()),
                                         Values(b_values.begin(), b_values.end()), m, n, k);
      const ScaledMatmul args = product(MatmulKind::forward, a, b, emulate);
      if (refuses(stream, args, m, n)) continue;
      CHECK(run(stream, args, DType::f32, m, n) == as_float(want.value));
    }
  });
}

TEST_CASE("scaled_matmul of normal values stays as near to the unquantized product as its formats allow") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t m = 64, n = 64, k = 512;
    const auto x = normal_values(m * k, 4, DType::bf16), w = normal_values(n * k, 5, DType::bf16);
    const Product unquantized = exact_product(as_double(x), as_double(w), m, n, k);
    for (const Case& c : kCases) {
      INFO(c.name);
      Operand a(stream, x, m, k, c.a), b(stream, w, n, k, c.b);
      const ScaledMatmul args = product(MatmulKind::forward, a, b, emulate);
      if (refuses(stream, args, m, n)) continue;
      const double error = relative(run(stream, args, DType::f32, m, n), unquantized.value);
      CHECK(error > 0.01);
      CHECK(error <= (c.a.format == DType::e5m2 ? 0.075 : 0.05));
    }
  });
}

TEST_CASE(
    "scaled_matmul: the three products of a layer equal the straight-through formula, and mutations do not") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t T = 64, K = 96, O = 48;
    const auto x = normal_values(T * K, 1, DType::bf16, 3), w = normal_values(O * K, 2, DType::bf16, 0.02f),
               dy = normal_values(T * O, 3, DType::bf16, 1e-4f);
    const ReferenceRecipe e4m3{DType::e4m3, Granularity::tensor}, e5m2{DType::e5m2, Granularity::tensor};
    Operand x_TK(stream, x, T, K, e4m3), w_OK(stream, w, O, K, e4m3), dy_TO(stream, dy, T, O, e5m2);
    Operand wt(stream, test::transposed(w, O, K), K, O, e4m3),
        xt(stream, test::transposed(x, T, K), K, T, e4m3),
        dyt(stream, test::transposed(dy, T, O), O, T, e5m2);
    const Product y_want = exact_product(x_TK.exact, w_OK.exact, T, O, K);
    const Product dx_want = exact_product(dy_TO.exact, test::transposed(w_OK.exact, O, K), T, K, O);
    const Product dw_want =
        exact_product(test::transposed(dy_TO.exact, T, O), test::transposed(x_TK.exact, T, K), O, K, T);
    auto is = [&](const std::vector<float>& got, const Product& want, int64_t terms) {
      const Tolerance t = product_tolerance(stream, emulate, DType::f32, 3, terms);
      for (size_t i = 0; i < got.size(); ++i) {
        const double allowed = t.stored * std::abs(want.value[i]) + t.arithmetic * want.magnitude[i];
        if (!(std::abs(got[i] - want.value[i]) <= allowed)) return false;
      }
      return true;
    };
    const ScaledMatmul forward = product(MatmulKind::forward, x_TK, w_OK, emulate);
    if (refuses(stream, forward, T, O)) return;
    auto dw = [&](const Float8Tensor& a, const Float8Tensor& b) {
      return run(stream, {.kind = MatmulKind::weight_gradient, .a = a, .b = b, .emulate = emulate},
                 DType::f32, O, K);
    };
    const Float8Tensor dy_view = dyt.over_rows(), x_view = xt.over_rows();
    CHECK(is(run(stream, forward, DType::f32, T, O), y_want, K));
    CHECK(is(run(stream, product(MatmulKind::input_gradient, dy_TO, wt, emulate), DType::f32, T, K), dx_want,
             O));
    CHECK(is(dw(dy_view, x_view), dw_want, T));

    // Scale for inverse.
    DeviceBuffer swapped(stream, DType::f32, {1}, std::array{1.0f / xt.inverse.floats()[0]});
    Float8Tensor mutated = x_view;
    mutated.columnwise.scale_inverse = swapped;
    CHECK_FALSE(is(dw(dy_view, mutated), dw_want, T));
    // The inverse of a later tensor beside the codes of an earlier one.
    DeviceBuffer later(stream, DType::f32, {1}, std::array{xt.inverse.floats()[0] * 1.01f});
    mutated.columnwise.scale_inverse = later;
    CHECK_FALSE(is(dw(dy_view, mutated), dw_want, T));
    // Gradients in E4M3: other codes, other products.
    Operand narrow(stream, test::transposed(dy, T, O), O, T, e4m3);
    CHECK_FALSE(is(dw(narrow.over_rows(), x_view), dw_want, T));
    // E5M2 codes read as E4M3.
    mutated = dy_view;
    mutated.columnwise.codes.dtype = DType::e4m3;
    CHECK_FALSE(is(dw(mutated, x_view), dw_want, T));
    // A scale of each row where the tensor's belongs.
    Operand rows(stream, test::transposed(dy, T, O), O, T, {DType::e5m2, Granularity::row});
    if (!refuses(stream, product(MatmulKind::weight_gradient, rows, xt, emulate), O, K)) {
      CHECK_FALSE(is(dw(rows.over_rows(), x_view), dw_want, T));
    }
  });
}

TEST_CASE("scaled_matmul writes a block of columns, and nothing beside it") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t m = 48, n = 80, k = 256, first = 32, width = first + n + 48;
    for (const Case& c : kCases) {
      INFO(c.name);
      Operand a(stream, normal_values(m * k, 1), m, k, c.a), b(stream, normal_values(n * k, 2), n, k, c.b);
      for (bool accumulate : {false, true}) {
        ScaledMatmul args =
            product(accumulate ? MatmulKind::weight_gradient : MatmulKind::forward, a, b, emulate);
        if (refuses(stream, args, m, n)) continue;
        Product want = exact_product(a.exact, b.exact, m, n, k);
        for (size_t i = 0; accumulate && i < want.value.size(); ++i)
          want.value[i] += 7, want.magnitude[i] += 7;
        args.out_columns = {first, first + n}, args.accumulate = accumulate;
        for (DType dtype : {DType::f32, DType::bf16}) {
          if (accumulate && dtype == DType::bf16) continue;
          DeviceBuffer out(stream, dtype, {m, width},
                           std::vector<float>(static_cast<size_t>(m * width), 7.0f));
          args.out = out;
          run_with_workspaces(stream, args);
          std::vector<float> block;
          const std::vector<float> got = out.floats();
          for (size_t i = 0; i < got.size(); ++i) {
            const int64_t column = static_cast<int64_t>(i) % width - first;
            if (column >= 0 && column < n) {
              block.push_back(got[i]);
            } else {
              REQUIRE(got[i] == 7.0f);
            }
          }
          check_close(block, want.value, product_tolerance(stream, emulate, dtype, 4, k), want.magnitude);
        }
      }
    }
  });
}

TEST_CASE("scaled_matmul repeats bitwise") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t m = 48, n = 80, k = 256;
    Operand a(stream, normal_values(m * k, 1), m, k, kCases[2].a),
        b(stream, normal_values(n * k, 2), n, k, kCases[2].b);
    const ScaledMatmul args = product(MatmulKind::forward, a, b, emulate);
    if (refuses(stream, args, m, n)) return;
    const auto first = run(stream, args, DType::bf16, m, n);
    CHECK(run(stream, args, DType::bf16, m, n) == first);
  });
}

TEST_CASE(
    "scaled_matmul, emulated on a GPU, is the CPU's product of small integers bit for bit, scales included") {
  if (!has_gpu()) return skip(kNoGpu);
  for_each_device([](Stream& stream) {
    if (stream.type() != DeviceType::cuda) return;
    Stream cpu = Stream::cpu();
    const int64_t m = 32, n = 48, k = 64;
    std::vector<float> values;
    for (int64_t i = 0; i < n * k; ++i) values.push_back(static_cast<float>(i * 7919 % 31) - 15);
    const std::vector<float> a_values(values.begin(), values.begin() + m * k);
    for (const Case& c : {kCases[0], kCases[3], kCases[4], kCases[5]}) {
      INFO(c.name);
      auto sums = [&](Stream& s, DType dtype) {
        Operand a(s, a_values, m, k, c.a), b(s, values, n, k, c.b);
        return run(s, product(MatmulKind::forward, a, b, true), dtype, m, n);
      };
      for (DType dtype : {DType::f32, DType::bf16}) CHECK(sums(stream, dtype) == sums(cpu, dtype));
    }
  });
}
