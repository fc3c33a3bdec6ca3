#include "fp8/scaled_matmul.h"

#include <algorithm>
#include <array>
#include <functional>

#include "core/cost.h"
#include "tests/fp8/reference.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::fp8;
using namespace ottava::test;
using Contraction = ScaledOperand::Contraction;

namespace {

using Values = std::vector<double>;

/// A quantized matrix [outer, contraction], in memory as it is or turned, with its FP64 meaning.
struct Operand {
  Operand(Stream& stream, const std::vector<float>& values, int64_t outer, int64_t inner,
          ReferenceRecipe recipe, Contraction contraction = Contraction::inner)
      : rows(contraction == Contraction::inner ? outer : inner),
        cols(contraction == Contraction::inner ? inner : outer),
        bytes(stream, recipe.format, {rows, cols}),
        inverse(stream, scale_dtype(recipe.granularity), scale_shape(recipe.granularity, rows, cols)),
        view{{bytes, inverse}, recipe.granularity, contraction} {
    const auto stored = contraction == Contraction::inner ? values : test::transposed(values, outer, inner);
    DeviceBuffer x(stream, DType::bf16, {rows, cols}, stored), amax_1(stream, DType::u32, {1});
    amax_1.upload_as<uint32_t>(std::array{largest_bits(x.floats())});
    Quantize args{.x = x,
                  .granularity = recipe.granularity,
                  .rounding = recipe.power_of_two ? ScaleRounding::down_to_power_of_two : ScaleRounding::none,
                  .out = {bytes, inverse}};
    if (recipe.granularity == Granularity::tensor) args.amax = amax_1;
    quantize(stream, args);
    const auto q = reference_quantize(x.floats(), rows, cols, recipe);
    const auto table = finite_values(recipe.format);
    for (size_t i = 0; i < q.codes.size(); ++i) {
      const double v = table[q.codes[i] & 0x7f] * static_cast<double>(q.inverses[i]);
      exact.push_back(q.codes[i] & 0x80 ? -v : v);
    }
    if (contraction == Contraction::outer) exact = test::transposed(exact, rows, cols);
  }
  int64_t rows, cols;
  DeviceBuffer bytes, inverse;
  ScaledOperand view;
  Values exact;  ///< [outer, contraction]
};

/// out = a b^T and the sums of the absolute values of its terms.
struct Product {
  Values value, magnitude;
};
Product exact_product(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k) {
  Product p{Values(static_cast<size_t>(m * n)), Values(static_cast<size_t>(m * n))};
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        const double term = a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(j * k + l)];
        p.value[static_cast<size_t>(i * n + j)] += term;
        p.magnitude[static_cast<size_t>(i * n + j)] += std::abs(term);
      }
    }
  }
  return p;
}

std::vector<float> run(Stream& stream, ScaledMatmul args, DType dtype, int64_t m, int64_t n,
                       const std::vector<float>* before = nullptr) {
  DeviceBuffer out(stream, dtype, {m, n});
  if (before) out.upload(*before);
  args.out = out;
  args.accumulate = before != nullptr;
  DeviceBuffer workspace(stream, DType::u8, {scaled_matmul_workspace_bytes(stream, args)});
  // What a GPU may use at most is much for these products, and filling it is slow where there is none.
  const int64_t inner_bytes =
      std::min(scaled_matmul_inner_workspace_bytes(stream, args) + 64, int64_t{1} << 20);
  DeviceBuffer inner(stream, DType::u8, {inner_bytes});
  set_matmul_workspace(stream, inner);
  args.workspace = workspace;
  scaled_matmul(stream, args);
  return out.floats();
}

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

/// Calls body(stream, emulate) for every device, and a second time for a GPU that emulates.
template <class Body>
void for_each_way(Body&& body) {
  for_each_device([&](Stream& stream) {
    body(stream, false);
    INFO("emulated");
    if (stream.type() == DeviceType::cuda) body(stream, true);
  });
}
/// Whether this GPU multiplies such scales; a GPU that does not must say so.
bool refuses(Stream& stream, ScaledMatmul args, int64_t m, int64_t n) {
  if (stream.type() != DeviceType::cuda || args.emulate) return false;
  const int capability = cuda::compute_capability(stream.device().index);
  const Granularity g = std::max(args.a.granularity, args.b.granularity);
  if (g == Granularity::tensor       ? capability >= 89
      : g == Granularity::block_1x32 ? capability >= 100
                                     : capability == 90)
    return false;
  CHECK_THROWS_WITH(
      run(stream, args, DType::f32, m, n),
      Catch::Matchers::Contains(fmt::format("does not multiply with scales per {}", name_of(g))));
  return true;
}

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
        ScaledMatmul args{.a = a.view, .b = b.view, .emulate = emulate};
        if (refuses(stream, args, s.m, s.n)) continue;
        const Product want = exact_product(a.exact, b.exact, s.m, s.n, s.k);
        for (DType dtype : {DType::f32, DType::bf16}) {
          const auto got = run(stream, args, dtype, s.m, s.n);
          check_close(got, want.value, tolerance(dtype, 3, s.k), want.magnitude);
        }
        const auto before = normal_values(s.m * s.n, 3);
        Values sum = want.value, magnitude = want.magnitude;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[i], magnitude[i] += std::abs(before[i]);
        args.kind = MatmulKind::weight_gradient;
        check_close(run(stream, args, DType::f32, s.m, s.n, &before), sum, tolerance(DType::f32, 4, s.k),
                    magnitude);
      }
    }
  });
}

TEST_CASE(
    "scaled_matmul of operands that lie turned in memory is the same product, where it is not refused") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t m = 32, n = 48, k = 288;
    const auto x = normal_values(m * k, 1), y = normal_values(n * k, 2);
    for (Granularity g : {Granularity::tensor, Granularity::block_128x128}) {
      const ReferenceRecipe recipe{DType::e4m3, g, true};
      const ReferenceRecipe left{DType::e4m3, g == Granularity::tensor ? g : Granularity::block_1x128, true};
      Operand a(stream, x, m, k, left), b(stream, y, n, k, recipe),
          turned_b(stream, y, n, k, recipe, Contraction::outer);
      const Product want = exact_product(a.exact, b.exact, m, n, k);
      const ScaledMatmul args{
          .kind = MatmulKind::input_gradient, .a = a.view, .b = turned_b.view, .emulate = emulate};
      if (stream.type() == DeviceType::cuda && !emulate) {
        CHECK_THROWS_WITH(
            run(stream, args, DType::f32, m, n),
            "[scaled_matmul] b has its contraction outside, and a GPU multiplies FP8 only with both "
            "inside: transpose its bytes, or emulate");
        continue;
      }
      const auto got = run(stream, args, DType::f32, m, n);
      check_close(got, want.value, tolerance(DType::f32, 3, k), want.magnitude);
      if (g != Granularity::tensor) continue;
      Operand turned_a(stream, x, m, k, recipe, Contraction::outer);
      check_close(run(stream,
                      {.kind = MatmulKind::weight_gradient,
                       .a = turned_a.view,
                       .b = turned_b.view,
                       .emulate = emulate},
                      DType::f32, m, n),
                  want.value, tolerance(DType::f32, 3, k), want.magnitude);
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
      const ScaledMatmul args{.a = a.view, .b = b.view, .emulate = emulate};
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
      const ScaledMatmul args{.a = a.view, .b = b.view, .emulate = emulate};
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
      const Tolerance t = tolerance(DType::f32, 3, terms);
      for (size_t i = 0; i < got.size(); ++i) {
        const double allowed = t.stored * std::abs(want.value[i]) + t.arithmetic * want.magnitude[i];
        if (!(std::abs(got[i] - want.value[i]) <= allowed)) return false;
      }
      return true;
    };
    if (refuses(stream, {.a = x_TK.view, .b = w_OK.view, .emulate = emulate}, T, O)) return;
    auto dw = [&](const ScaledOperand& a, const ScaledOperand& b) {
      return run(stream, {.kind = MatmulKind::weight_gradient, .a = a, .b = b, .emulate = emulate},
                 DType::f32, O, K);
    };
    CHECK(is(run(stream, {.a = x_TK.view, .b = w_OK.view, .emulate = emulate}, DType::f32, T, O), y_want, K));
    CHECK(is(
        run(stream, {.kind = MatmulKind::input_gradient, .a = dy_TO.view, .b = wt.view, .emulate = emulate},
            DType::f32, T, K),
        dx_want, O));
    CHECK(is(dw(dyt.view, xt.view), dw_want, T));

    // Scale for inverse.
    DeviceBuffer swapped(stream, DType::f32, {1}, std::array{1.0f / xt.inverse.floats()[0]});
    ScaledOperand mutated = xt.view;
    mutated.matrix.scale_inverse = swapped;
    CHECK_FALSE(is(dw(dyt.view, mutated), dw_want, T));
    // The inverse of a later tensor beside the bytes of an earlier one.
    DeviceBuffer later(stream, DType::f32, {1}, std::array{xt.inverse.floats()[0] * 1.01f});
    mutated.matrix.scale_inverse = later;
    CHECK_FALSE(is(dw(dyt.view, mutated), dw_want, T));
    // Gradients in E4M3: other bytes, other products.
    Operand narrow(stream, test::transposed(dy, T, O), O, T, e4m3);
    CHECK_FALSE(is(dw(narrow.view, xt.view), dw_want, T));
    // E5M2 bytes read as E4M3.
    mutated = dyt.view;
    mutated.matrix.bytes.dtype = DType::e4m3;
    CHECK_FALSE(is(dw(mutated, xt.view), dw_want, T));
    // A scale of each row where the tensor's belongs.
    Operand rows(stream, test::transposed(dy, T, O), O, T, {DType::e5m2, Granularity::row});
    if (!refuses(stream, {.a = rows.view, .b = xt.view, .emulate = emulate}, O, K)) {
      CHECK_FALSE(is(dw(rows.view, xt.view), dw_want, T));
    }
  });
}

TEST_CASE("scaled_matmul repeats bitwise") {
  for_each_way([](Stream& stream, bool emulate) {
    const int64_t m = 48, n = 80, k = 256;
    Operand a(stream, normal_values(m * k, 1), m, k, kCases[2].a),
        b(stream, normal_values(n * k, 2), n, k, kCases[2].b);
    const ScaledMatmul args{.a = a.view, .b = b.view, .emulate = emulate};
    if (refuses(stream, args, m, n)) return;
    const auto first = run(stream, args, DType::bf16, m, n);
    CHECK(run(stream, args, DType::bf16, m, n) == first);
  });
}

TEST_CASE(
    "scaled_matmul, emulated on a GPU, is the CPU's product of small integers bit for bit, scales included") {
  for_each_device([](Stream& stream) {
    if (stream.type() != DeviceType::cuda) return;
    Stream cpu = Stream::cpu();
    const int64_t m = 32, n = 48, k = 64;
    std::vector<float> values;
    for (int64_t i = 0; i < n * k; ++i) values.push_back(static_cast<float>(i * 7919 % 31) - 15);
    const std::vector<float> a_values(values.begin(), values.begin() + m * k);
    for (const Case& c : {kCases[0], kCases[3], kCases[4], kCases[5]}) {
      INFO(c.name);
      auto product = [&](Stream& s, DType dtype) {
        Operand a(s, a_values, m, k, c.a), b(s, values, n, k, c.b);
        return run(s, {.a = a.view, .b = b.view, .emulate = true}, dtype, m, n);
      };
      for (DType dtype : {DType::f32, DType::bf16}) CHECK(product(stream, dtype) == product(cpu, dtype));
    }
  });
}

TEST_CASE("scaled_matmul on meta records FP8 arithmetic and its workspaces") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  auto operand = [](int64_t rows, int64_t cols) {
    return ScaledOperand{{shape_only(DType::e4m3, {rows, cols}), shape_only(DType::f32, {1})}};
  };
  ScaledMatmul args{.a = operand(32, 64), .b = operand(48, 64), .out = shape_only(DType::bf16, {32, 48})};
  scaled_matmul(stream, args);
  CHECK(recorder.flops(Precision::fp8) == 2.0 * 32 * 48 * 64);
  CHECK(recorder.flops(Precision::bf16) == 0);
  CHECK(recorder.bytes() == 32 * 64 + 48 * 64 + 2 * 4 + 32 * 48 * 2);
  CHECK(recorder.workspace_bytes() == scaled_matmul_inner_workspace_bytes(stream, args));
  // One scale goes into the product where oneDNN takes it, else sums wait for it in f32; scales of rows always wait.
  const bool takes_scale = matmul_takes_scale(
      stream, {.a = shape_only(DType::bf16, {32, 64}), .b = shape_only(DType::bf16, {48, 64}), .out = args.out});
  CHECK(scaled_matmul_workspace_bytes(stream, args) == 2 * (32 * 64 + 48 * 64) + (takes_scale ? 0 : 4 * 32 * 48));
  ScaledMatmul by_rows = args;
  by_rows.a = {{shape_only(DType::e4m3, {32, 64}), shape_only(DType::f32, {32})}, Granularity::row};
  CHECK(scaled_matmul_workspace_bytes(stream, by_rows) == 2 * (32 * 64 + 48 * 64) + 4 * 32 * 48);
  args.out = shape_only(DType::f32, {32, 48});
  CHECK(scaled_matmul_workspace_bytes(stream, args) == 2 * (32 * 64 + 48 * 64));
  Stream gpu = Stream::meta(recorder, {DeviceType::cuda, 0});
  CHECK(scaled_matmul_workspace_bytes(gpu, args) == 0);
  const ScaledOperand rows{{shape_only(DType::e4m3, {32, 64}), shape_only(DType::f32, {32})},
                           Granularity::row};
  args.a = rows;
  CHECK(scaled_matmul_workspace_bytes(gpu, args) == 48 * 4);
  args.emulate = true;
  CHECK(scaled_matmul_workspace_bytes(gpu, args) == 2 * (32 * 64 + 48 * 64));
  args.emulate = false;
  args.b.contraction = Contraction::outer;
  args.b.matrix.bytes = shape_only(DType::e4m3, {64, 48});
  CHECK_THROWS_WITH(scaled_matmul(gpu, args),
                    Catch::Matchers::Contains("b has its contraction outside, and a GPU"));
}

TEST_CASE(
    "scaled_matmul on a GPU refuses addresses that tensor cores do not take, and too little workspace") {
  for_each_device([](Stream& stream) {
    if (stream.type() != DeviceType::cuda) return;
    DeviceBuffer bytes(stream, DType::e4m3, {64, 64}), scales(stream, DType::f32, {64}),
        out(stream, DType::f32, {32, 32});
    auto at = [](const DeviceBuffer& buffer, int64_t offset, Shape shape) {
      return Tensor{static_cast<uint8_t*>(buffer.tensor().data) + offset, buffer.tensor().dtype, shape};
    };
    if (cuda::compute_capability(stream.device().index) < 89) return;
    const ScaledOperand good{{at(bytes, 0, {32, 64}), at(scales, 0, {1})}};
    const ScaledMatmul args{.a = good, .b = good, .out = out};
    auto refused = [&](const ScaledMatmul& bad, const char* what) {
      CHECK_THROWS_WITH(scaled_matmul(stream, bad), Catch::Matchers::Contains(what));
    };
    ScaledMatmul bad = args;
    bad.a.matrix.bytes = at(bytes, 8, {32, 64});
    refused(bad, "[scaled_matmul] a.bytes at ");
    bad = args, bad.b.matrix.scale_inverse = at(scales, 4, {1});
    refused(bad, "is not aligned to 16 bytes, which tensor cores need");
    bad = args, bad.emulate = true;
    refused(bad,
            "[scaled_matmul] workspace is f32 [], expected u8 [8192]: scaled_matmul_workspace_bytes tells");
    bad = args, bad.a.granularity = Granularity::row, bad.a.matrix.scale_inverse = at(scales, 0, {32});
    refused(bad,
            "[scaled_matmul] workspace is f32 [], expected u8 [128]: scaled_matmul_workspace_bytes tells");
  });
}

TEST_CASE("scaled_matmul refuses what tensor cores cannot multiply, with the arithmetic") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  auto operand = [](int64_t rows, int64_t cols, Granularity g = Granularity::tensor,
                    DType format = DType::e4m3) {
    return ScaledOperand{
        {shape_only(format, {rows, cols}), shape_only(scale_dtype(g), scale_shape(g, rows, cols))}, g};
  };
  auto out = [](int64_t m, int64_t n) { return shape_only(DType::f32, {m, n}); };
  auto refuses = [&](const ScaledMatmul& args, const char* message) {
    CHECK_THROWS_WITH(scaled_matmul(stream, args), message);
  };
  refuses({.a = operand(32, 64), .b = operand(564, 64), .out = out(32, 564)},
          "[scaled_matmul] outer extent of b is 564, not a multiple of 16: 564/16 = 35.25; run this product "
          "in bf16 or pad it");
  refuses({.a = operand(30, 64), .b = operand(64, 64), .out = out(30, 64)},
          "[scaled_matmul] outer extent of a is 30, not a multiple of 16: 30/16 = 1.875; run this product in "
          "bf16 or pad it");
  refuses({.a = operand(32, 72), .b = operand(64, 72), .out = out(32, 64)},
          "[scaled_matmul] the contraction is 72, not a multiple of 16: 72/16 = 4.5; run this product in "
          "bf16 or pad it");
  refuses({.a = operand(32, 48, Granularity::block_1x32),
           .b = operand(64, 48, Granularity::block_1x32),
           .out = out(32, 64)},
          "[scaled_matmul] the contraction is 48, not a multiple of 32: 48/32 = 1.5; run this product in "
          "bf16 or pad it");
  refuses({.a = operand(32, 64), .b = operand(64, 80), .out = out(32, 64)},
          "[scaled_matmul] contractions differ: a [32, 64], b [64, 80] (64 vs 80)");
  refuses({.a = operand(32, 64, Granularity::tensor, DType::e5m2),
           .b = operand(64, 64, Granularity::tensor, DType::e5m2),
           .out = out(32, 64)},
          "[scaled_matmul] a and b are both e5m2: at most one operand may be");
  refuses({.a = operand(32, 64, Granularity::block_128x128),
           .b = operand(64, 64, Granularity::block_128x128),
           .out = out(32, 64)},
          "[scaled_matmul] scales per 128x128 of a and per 128x128 of b do not go together");
  refuses({.a = operand(32, 64, Granularity::row),
           .b = operand(64, 64, Granularity::block_1x32),
           .out = out(32, 64)},
          "[scaled_matmul] scales per row of a and per 1x32 of b do not go together");
  ScaledOperand turned = operand(64, 64, Granularity::row);
  turned.contraction = Contraction::outer;
  refuses({.a = operand(32, 64), .b = turned, .out = out(32, 64)},
          "[scaled_matmul] b has its contraction outside, where its row scales do not run along it: quantize "
          "the transpose");
  turned = operand(64, 32);
  turned.contraction = Contraction::outer;
  refuses({.a = turned, .b = operand(64, 64), .out = out(32, 64)},
          "[scaled_matmul] a has its contraction outside and b inside: no layer needs that, transpose one of "
          "them");
  refuses({.a = operand(32, 64), .b = operand(64, 64), .out = out(32, 48)},
          "[scaled_matmul] out is f32 [32, 48], expected f32 [32, 64]");
  refuses({.a = operand(32, 64), .b = operand(64, 64), .out = shape_only(DType::u8, {32, 64})},
          "[scaled_matmul] out is u8 [32, 64], expected f32 or bf16");
  refuses({.a = operand(32, 64),
           .b = operand(64, 64),
           .out = shape_only(DType::bf16, {32, 64}),
           .accumulate = true},
          "[scaled_matmul] out is bf16 [32, 64], accumulating needs f32");
  ScaledMatmul bad{.a = operand(32, 64), .b = operand(64, 64), .out = out(32, 64)};
  bad.a.matrix.scale_inverse = shape_only(DType::f32, {32});
  refuses(bad, "[scaled_matmul] a.scale_inverse is f32 [32], expected f32 [1]");
  bad.a.matrix.bytes = shape_only(DType::e4m3, {32});
  refuses(bad, "[scaled_matmul] a is e4m3 [32], expected a matrix");

  Stream cpu = Stream::cpu();
  const int64_t m = 16, k = 128;
  Operand a(cpu, normal_values(m * k, 1), m, k, {DType::e4m3, Granularity::block_1x128, true});
  Operand b(cpu, normal_values(m * k, 2), m, k, {DType::e4m3, Granularity::block_1x128, false});
  CHECK_THROWS_AS(run(cpu, {.a = a.view, .b = b.view}, DType::f32, m, m), NumericsError);
  CHECK_THROWS_WITH(run(cpu, {.a = a.view, .b = b.view}, DType::f32, m, m),
                    Catch::Matchers::Contains("not a power of two"));
  for (float extreme : {0x1p-118f, 0x1p120f}) {
    std::vector<float> inverses(static_cast<size_t>(m), extreme);
    a.inverse.upload(inverses);
    CHECK_THROWS_WITH(run(cpu, {.a = a.view, .b = a.view}, DType::f32, m, m),
                      Catch::Matchers::Contains("outside of [2^-117, 2^119]"));
  }
  DeviceBuffer result(cpu, DType::f32, {m, m});
  CHECK_THROWS_WITH(
      scaled_matmul(cpu, {.a = a.view, .b = a.view, .out = result}),
      "[scaled_matmul] workspace is f32 [], expected u8 [8192]: scaled_matmul_workspace_bytes tells");
}
