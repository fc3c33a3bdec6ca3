#include "core/ops/matmul/matmul.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>

#include "core/cost.h"
#include "core/cpu/matmul_cache.h"
#include "core/parallel_for.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

/// y [N,O], x [N,K], weight [O,K].
struct Size {
  int64_t n, o, k;
};
// One element; odd everything; whole vectors; more than one tile and panel with remainders (the widening
// path); tall.
const Size kSizes[] = {{1, 1, 1},       {3, 5, 7},      {16, 32, 64}, {65, 129, 33},
                       {300, 270, 520}, {1000, 24, 40}, {2, 640, 96}};
constexpr MatmulKind kKinds[] = {MatmulKind::forward, MatmulKind::input_gradient,
                                 MatmulKind::weight_gradient};

struct Problem {
  Shape a, b, out;
  int64_t terms;
};
Problem problem_of(MatmulKind kind, Size s) {
  switch (kind) {
    case MatmulKind::forward:
      return {{s.n, s.k}, {s.o, s.k}, {s.n, s.o}, s.k};
    case MatmulKind::input_gradient:
      return {{s.n, s.o}, {s.o, s.k}, {s.n, s.k}, s.o};
    default:
      return {{s.n, s.o}, {s.n, s.k}, {s.o, s.k}, s.n};
  }
}

/// The product by its definition, and the sums of the absolute values of its terms.
struct Reference {
  std::vector<double> product, size;
};
Reference reference(MatmulKind kind, const Problem& p, const std::vector<float>& a,
                    const std::vector<float>& b) {
  const int64_t rows = p.out[0], cols = p.out[1];
  Reference r{std::vector<double>(static_cast<size_t>(rows * cols)),
              std::vector<double>(static_cast<size_t>(rows * cols))};
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < p.terms; ++k) {
        double x =
            a[static_cast<size_t>(kind == MatmulKind::weight_gradient ? k * p.a[1] + i : i * p.a[1] + k)];
        double y = b[static_cast<size_t>(kind == MatmulKind::forward ? j * p.b[1] + k : k * p.b[1] + j)];
        sum += x * y;
        size += std::abs(x * y);
      }
      r.product[static_cast<size_t>(i * cols + j)] = sum;
      r.size[static_cast<size_t>(i * cols + j)] = size;
    }
  }
  return r;
}

/// A stream's workspace as large as its problem asks for.
class Workspace {
 public:
  Workspace(Stream& stream, const Matmul& args)
      : buffer_(stream, DType::u8, {matmul_workspace_bytes(stream, args)}) {
    set_matmul_workspace(stream, buffer_);
  }

 private:
  DeviceBuffer buffer_;
};

}  // namespace

TEST_CASE("matmul agrees with the reference for every kind, dtype and result") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (Size s : kSizes) {
      for (MatmulKind kind : kKinds) {
        const Problem p = problem_of(kind, s);
        auto a = normal_values(p.a.numel(), 1, dtype), b = normal_values(p.b.numel(), 2, dtype);
        auto before = normal_values(p.out.numel(), 3);
        const Reference want = reference(kind, p, a, b);
        DeviceBuffer a_buffer(stream, dtype, p.a, a), b_buffer(stream, dtype, p.b, b),
            out(stream, DType::f32, p.out), rounded(stream, DType::bf16, p.out);
        INFO("kind " << static_cast<int>(kind) << " N " << s.n << " O " << s.o << " K " << s.k);
        Matmul args{.kind = kind, .a = a_buffer, .b = b_buffer, .out = out};
        {
          Workspace workspace(stream, args);
          matmul(stream, args);
          check_close(out.floats(), want.product, tolerance(DType::f32, 1, p.terms), want.size);
        }
        {
          out.upload(before);
          args.accumulate = true;
          Reference sum = want;
          for (size_t i = 0; i < before.size(); ++i) {
            sum.product[i] += before[i];
            sum.size[i] += std::abs(before[i]);
          }
          Workspace workspace(stream, args);
          matmul(stream, args);
          check_close(out.floats(), sum.product, tolerance(DType::f32, 2, p.terms + 1), sum.size);
        }
        if (dtype == DType::bf16) {
          args.accumulate = false;
          args.out = rounded;
          Workspace workspace(stream, args);
          matmul(stream, args);
          check_close(rounded.floats(), want.product, tolerance(DType::bf16, 1, p.terms), want.size);
        }
      }
    }
  });
}

TEST_CASE("a symmetric product is the product, mirrored bit for bit, in as many bands as it has") {
  const bool widens = GENERATE(false, true);
  for_each_device_and_dtype([widens](Stream& stream, DType dtype) {
    if (widens && stream.type() == DeviceType::cpu)
      stream.matmul_cache().set_products({.matmul = cpu::Bf16Products::widened});
    for (const auto& [k, n] :
         {std::pair<int64_t, int64_t>{1, 3}, {65, 40}, {130, 33}, {300, 70}, {700, 48}}) {
      for (MatmulKind kind : kKinds) {
        const bool squares = kind == MatmulKind::input_gradient;
        const Shape shape = squares                               ? Shape{k, k}
                            : kind == MatmulKind::weight_gradient ? Shape{n, k}
                                                                  : Shape{k, n};
        std::vector<float> values = normal_values(shape.numel(), 1, dtype);
        for (int64_t i = 0; squares && i < k; ++i) {
          for (int64_t j = 0; j < i; ++j)
            values[static_cast<size_t>(i * k + j)] = values[static_cast<size_t>(j * k + i)];
        }
        INFO(name_of(kind) << " k " << k << " n " << n);
        const Problem p{shape, shape, {k, k}, squares ? k : n};
        const Reference want = reference(kind, p, values, values);
        DeviceBuffer x(stream, dtype, shape, values);
        for (DType type : {DType::f32, dtype}) {
          DeviceBuffer out(stream, type, p.out);
          const Matmul args{.kind = kind, .a = x, .b = x, .out = out, .result = MatmulResult::symmetric};
          Workspace workspace(stream, args);
          matmul(stream, args);
          const std::vector<float> got = out.floats();
          check_close(got, want.product, tolerance(type, 1, p.terms), want.size);
          int64_t different = 0;
          for (int64_t i = 0; i < k; ++i) {
            for (int64_t j = 0; j < i; ++j)
              different += got[static_cast<size_t>(i * k + j)] != got[static_cast<size_t>(j * k + i)];
          }
          CHECK(different == 0);
        }
      }
    }
  });
}

TEST_CASE("a large symmetric product, of several bands on a GPU too, is the whole one") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    constexpr int64_t kLarge = 2112;
    for (MatmulKind kind : {MatmulKind::forward, MatmulKind::weight_gradient}) {
      const Shape shape = kind == MatmulKind::forward ? Shape{kLarge, 5} : Shape{5, kLarge};
      std::vector<float> values;  // sums of whole numbers are exact in any order
      for (int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<float>(i * 37 % 7 - 3));
      DeviceBuffer x(stream, dtype, shape, values), whole(stream, DType::f32, {kLarge, kLarge}),
          out(stream, DType::f32, {kLarge, kLarge});
      Matmul args{.kind = kind, .a = x, .b = x, .out = whole};
      {
        Workspace workspace(stream, args);
        matmul(stream, args);
      }
      args.out = out;
      args.result = MatmulResult::symmetric;
      Workspace workspace(stream, args);
      matmul(stream, args);
      CHECK((out.floats() == whole.floats()));
    }
  });
}

namespace {

/// f32 results of one product, computed that way.
std::vector<float> product_of(cpu::Bf16Products way, MatmulKind kind, const Problem& p,
                              const std::vector<float>& a, const std::vector<float>& b,
                              const std::vector<float>* before = nullptr) {
  Stream stream = Stream::cpu();
  stream.matmul_cache().set_products({.matmul = way});
  DeviceBuffer a_buffer(stream, DType::bf16, p.a, a), b_buffer(stream, DType::bf16, p.b, b),
      out(stream, DType::f32, p.out);
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
  // 32 MiB of panels are two of 32 columns here.
  const Size s{131072, 3, 100};
  const Problem p = problem_of(MatmulKind::weight_gradient, s);
  const auto a = normal_values(p.a.numel(), 1, DType::bf16), b = normal_values(p.b.numel(), 2, DType::bf16);
  const Reference want = reference(MatmulKind::weight_gradient, p, a, b);
  check_close(product_of(cpu::Bf16Products::widened, MatmulKind::weight_gradient, p, a, b), want.product,
              tolerance(DType::f32, 1, p.terms), want.size);
}

TEST_CASE("products without instructions for them are refused") {
  Stream stream = Stream::cpu();
  if (cpu::multiplies_bf16_directly()) {
    stream.matmul_cache().set_products({.matmul = cpu::Bf16Products::direct});
    CHECK(stream.matmul_cache().products().matmul == cpu::Bf16Products::direct);
  } else {
    CHECK_THROWS_WITH(stream.matmul_cache().set_products({.attention = cpu::Bf16Products::direct}),
                      "[cpu] products of bf16 are direct, but this machine has no bf16 instructions to use: "
                      "take widened");
  }
}

TEST_CASE("matmul scales the sums before it rounds or adds them, where it says that it can") {
  Stream stream = Stream::cpu();
  for (MatmulKind kind : kKinds) {
    for (Size s : {Size{16, 32, 64}, Size{64, 48, 96}, Size{304, 272, 528}}) {
      for (bool accumulate : {false, true}) {
        for (DType result : {DType::f32, DType::bf16}) {
          if (accumulate && result == DType::bf16) continue;
          INFO("kind " << static_cast<int>(kind) << " n " << s.n << " accumulate " << accumulate << " "
                       << name_of(result));
          const Problem p = problem_of(kind, s);
          const auto a = normal_values(p.a.numel(), 1, DType::bf16),
                     b = normal_values(p.b.numel(), 2, DType::bf16);
          const auto before = normal_values(p.out.numel(), 3, result);
          DeviceBuffer a_buffer(stream, DType::bf16, p.a, a), b_buffer(stream, DType::bf16, p.b, b),
              out(stream, result, p.out, before);
          const float scale = 3.7e-5f;
          Matmul args{.kind = kind,
                      .a = a_buffer,
                      .b = b_buffer,
                      .out = out,
                      .accumulate = accumulate,
                      .scale = &scale};
          if (!matmul_takes_scale(stream, args)) {
            CHECK_THROWS_WITH(matmul(stream, args),
                              Catch::Contains("takes no scale here: matmul_takes_scale tells"));
            continue;
          }
          DeviceBuffer workspace(stream, DType::u8, {matmul_workspace_bytes(stream, args) + 64});
          set_matmul_workspace(stream, workspace);
          matmul(stream, args);
          Reference want = reference(kind, p, a, b);
          for (size_t i = 0; i < want.product.size(); ++i) {
            want.product[i] = want.product[i] * static_cast<double>(scale) + (accumulate ? before[i] : 0);
            want.size[i] = want.size[i] * static_cast<double>(scale) + (accumulate ? std::abs(before[i]) : 0);
          }
          const auto got = out.floats();
          check_close(got, want.product, tolerance(result, 3, p.terms), want.size);
          out.upload(before);
          matmul(stream, args);
          CHECK(out.floats() == got);
        }
      }
    }
  }
}

TEST_CASE("matmul reads a block of columns and writes one: what it makes of copies, and nothing beside it") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (Size s : {Size{3, 5, 7}, Size{65, 129, 33}, Size{300, 270, 520}}) {
      for (MatmulKind kind : kKinds) {
        const Problem p = problem_of(kind, s);
        const Reference want =
            reference(kind, p, normal_values(p.a.numel(), 1, dtype), normal_values(p.b.numel(), 2, dtype));
        auto within = [&](const std::vector<float>& values, Shape block, int64_t before, int64_t after) {
          const int64_t width = before + block.cols() + after;
          std::vector<float> whole(static_cast<size_t>(block.rows() * width), 77.0f);
          for (int64_t i = 0; i < block.numel(); ++i)
            whole[static_cast<size_t>(i / block.cols() * width + before + i % block.cols())] =
                values[static_cast<size_t>(i)];
          return whole;
        };
        const int64_t a_cols = p.a.cols(), out_cols = p.out.cols();
        DeviceBuffer a(stream, dtype, {p.a.rows(), a_cols + 24},
                       within(normal_values(p.a.numel(), 1, dtype), p.a, 8, 16)),
            b(stream, dtype, p.b, normal_values(p.b.numel(), 2, dtype));
        for (DType out_dtype : {DType::f32, dtype}) {
          INFO("kind " << static_cast<int>(kind) << " N " << s.n << " to " << name_of(out_dtype));
          const std::vector<float> before(static_cast<size_t>(p.out.numel()), 77.0f);
          DeviceBuffer out(stream, out_dtype, {p.out.rows(), out_cols + 48}, within(before, p.out, 16, 32));
          const Matmul args{.kind = kind,
                            .a = a,
                            .b = b,
                            .out = out,
                            .a_columns = {8, 8 + a_cols},
                            .out_columns = {16, 16 + out_cols}};
          Workspace workspace(stream, args);
          matmul(stream, args);
          const std::vector<float> got = out.floats();
          std::vector<float> block;
          for (size_t i = 0; i < got.size(); ++i) {
            const int64_t column = static_cast<int64_t>(i) % (out_cols + 48) - 16;
            if (column >= 0 && column < out_cols) {
              block.push_back(got[i]);
            } else {
              REQUIRE(got[i] == 77.0f);
            }
          }
          check_close(block, want.product, tolerance(out_dtype, 1, p.terms), want.size);
        }
      }
    }
  });
}

TEST_CASE("matmul takes a tensor of more than two axes as rows of its last") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    auto x = normal_values(2 * 3 * 16, 1, dtype), w = normal_values(8 * 16, 2, dtype);
    DeviceBuffer x_buffer(stream, dtype, {2, 3, 16}, x), w_buffer(stream, dtype, {8, 16}, w),
        out(stream, DType::f32, {2, 3, 8});
    const Matmul args{.kind = MatmulKind::forward, .a = x_buffer, .b = w_buffer, .out = out};
    Workspace workspace(stream, args);
    matmul(stream, args);
    const Problem p = problem_of(args.kind, {6, 8, 16});
    const Reference want = reference(args.kind, p, x, w);
    check_close(out.floats(), want.product, tolerance(DType::f32, 1, 16), want.size);
  });
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

TEST_CASE("matmul repeats bitwise and makes each primitive once per number of threads") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const int64_t n = 300, o = 270, k = 520;
    DeviceBuffer a(stream, dtype, {n, k}, normal_values(n * k, 1)),
        b(stream, dtype, {o, k}, normal_values(o * k, 2)), out(stream, DType::f32, {n, o});
    const Matmul args{.kind = MatmulKind::forward, .a = a, .b = b, .out = out};
    for_each_thread_count([&](int) {
      Workspace workspace(stream, args);
      matmul(stream, args);
      auto first = out.floats();
      const size_t made = stream.type() == DeviceType::cpu ? stream.matmul_cache().size() : 0;
      matmul(stream, args);
      auto second = out.floats();
      CHECK(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0);
      if (stream.type() == DeviceType::cpu) CHECK(stream.matmul_cache().size() == made);
    });
  });
}

TEST_CASE("add_bias and bias_gradient agree with their formulas") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {5, 37}, {200, 130}}) {
      auto y = normal_values(rows * cols, 1, dtype), bias = normal_values(cols, 2, dtype),
           before = normal_values(cols, 3);
      DeviceBuffer y_buffer(stream, dtype, {rows, cols}, y), bias_buffer(stream, dtype, {cols}, bias),
          dbias(stream, DType::f32, {cols}, before);
      bias_gradient(stream, y_buffer, dbias);
      add_bias(stream, y_buffer, bias_buffer);
      std::vector<double> sum(y.size()), gradient = as_double(before), size(before.size());
      for (size_t c = 0; c < size.size(); ++c) size[c] = std::abs(before[c]);
      for (size_t i = 0; i < y.size(); ++i) {
        const size_t c = i % static_cast<size_t>(cols);
        sum[i] = static_cast<double>(y[i]) + bias[c];
        gradient[c] += y[i];
        size[c] += std::abs(y[i]);
      }
      check_close(y_buffer.floats(), sum, tolerance(dtype, 1));
      check_close(dbias.floats(), gradient, tolerance(DType::f32, 1, rows), size);
    }
  });
}

TEST_CASE("matmul on meta records FLOPs, bytes and the largest workspace") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  Matmul args{.kind = MatmulKind::weight_gradient,
              .a = shape_only(DType::bf16, {64, 32}),
              .b = shape_only(DType::bf16, {64, 16}),
              .out = shape_only(DType::f32, {32, 16}),
              .accumulate = true};
  matmul(stream, args);
  CHECK(recorder.flops(Precision::bf16) == 2.0 * 64 * 32 * 16);
  CHECK(recorder.bytes() == 2.0 * (64 * 32 + 64 * 16) + 2 * 4.0 * 32 * 16);
  CHECK(recorder.workspace_bytes() == matmul_workspace_bytes(stream, args));
  Stream cpu = Stream::cpu();
  CHECK(matmul_workspace_bytes(cpu, args) == matmul_workspace_bytes(stream, args));
  args.a.dtype = args.b.dtype = DType::f32;
  matmul(stream, args);
  CHECK(recorder.flops(Precision::fp32) == 2.0 * 64 * 32 * 16);

  CostRecorder for_gpu;
  Stream planned = Stream::meta(for_gpu, {DeviceType::cuda, 0});
  matmul(planned, args);
  CHECK(for_gpu.workspace_bytes() == 32 << 20);

  const double before = recorder.bytes();
  add_bias(stream, args.a, shape_only(DType::f32, {32}));
  bias_gradient(stream, args.a, shape_only(DType::f32, {32}));
  CHECK(recorder.bytes() - before == 3.0 * 64 * 32 * 4);
  set_matmul_workspace(stream, shape_only(DType::u8, {64}));
}

TEST_CASE("matmul refuses what does not fit, and says what") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const Matmul good{.kind = MatmulKind::forward,
                    .a = shape_only(DType::bf16, {128, 64}),
                    .b = shape_only(DType::bf16, {32, 64}),
                    .out = shape_only(DType::bf16, {128, 32})};
  auto says = [&](auto&& change, const std::string& message) {
    Matmul args = good;
    change(args);
    CHECK_THROWS_WITH(matmul(stream, args), "[matmul] " + message);
    CHECK_THROWS_AS(matmul(stream, args), ShapeError);
  };
  matmul(stream, good);
  says([](auto& m) { m.a_columns = {32, 96}; }, "columns [32, 96) are not a block of bf16 [128, 64]");
  says(
      [](auto& m) {
        m.out_columns = {0, 16};
      },
      "out is bf16 [128, 16], expected [128, 32] from a [128, 64], b [32, 64]");
  says([](auto& m) { m.a.dtype = DType::i32; }, "a is i32 [128, 64], expected f32 or bf16");
  says([](auto& m) { m.b.dtype = DType::f32; }, "b is f32 [32, 64], expected bf16 (like a)");
  says([](auto& m) { m.out.dtype = DType::u8; }, "out is u8 [128, 32], expected f32 or bf16");
  says([](auto& m) { m.a.dtype = m.b.dtype = DType::f32; }, "out is bf16 [128, 32], expected f32 (like a)");
  says([](auto& m) { m.accumulate = true; }, "out is bf16 [128, 32], accumulating needs f32");
  says([](auto& m) { m.result = MatmulResult::symmetric; },
       "a bf16 [128, 64], b bf16 [32, 64]: a symmetric result is of one tensor and itself, neither "
       "accumulated "
       "nor scaled, without blocks of columns");
  says(
      [](auto& m) {
        m.a.shape = {0, 64};
      },
      "a [0, 64], b [32, 64], out [128, 32]: each needs at least one element");
  says([](auto& m) { m.b.shape = {32, 60}; }, "inner dimensions differ: a [128, 64], b [32, 60] (64 vs 60)");
  says([](auto& m) { m.kind = MatmulKind::input_gradient; },
       "inner dimensions differ: a [128, 64], b [32, 64] (64 vs 32)");
  says(
      [](auto& m) {
        m.out.shape = {128, 31};
      },
      "out is bf16 [128, 31], expected [128, 32] from a [128, 64], b [32, 64]");

  const Tensor y = shape_only(DType::bf16, {4, 8});
  CHECK_THROWS_WITH(add_bias(stream, shape_only(DType::u8, {4, 8}), y),
                    "[add_bias] y is u8 [4, 8], expected f32 or bf16");
  CHECK_THROWS_WITH(add_bias(stream, y, shape_only(DType::f32, {8})),
                    "[add_bias] bias is f32 [8], expected bf16 [8]");
  CHECK_THROWS_WITH(bias_gradient(stream, shape_only(DType::u8, {4, 8}), y),
                    "[bias_gradient] dy is u8 [4, 8], expected f32 or bf16");
  CHECK_THROWS_WITH(bias_gradient(stream, y, shape_only(DType::bf16, {8})),
                    "[bias_gradient] dbias is bf16 [8], expected f32 [8]");
  CHECK_THROWS_WITH(set_matmul_workspace(stream, y),
                    "[set_matmul_workspace] workspace is bf16 [4, 8], expected u8 [32]");
}

TEST_CASE("matmul without enough workspace says how much it needs") {
  Stream stream = Stream::cpu();
  DeviceBuffer a(stream, DType::bf16, {64, 64}, normal_values(64 * 64, 1)), out(stream, DType::f32, {64, 64});
  const Matmul args{.kind = MatmulKind::forward, .a = a, .b = a, .out = out};
  const int64_t needed = matmul_workspace_bytes(stream, args);
  if (needed > 0) {
    CHECK_THROWS_WITH(
        matmul(stream, args),
        "[matmul] workspace has 0 bytes, " + std::to_string(needed) +
            " are needed: give set_matmul_workspace the largest matmul_workspace_bytes of all products");
  } else {
    matmul(stream, args);
  }
  alignas(64) static uint8_t memory[128];
  CHECK_THROWS_AS(set_matmul_workspace(stream, view_of(memory + 1, {64})), MemoryError);
  CHECK_THROWS_WITH(set_matmul_workspace(stream, view_of(memory + 1, {64})),
                    Catch::Matchers::Contains("is not aligned to 64 bytes"));
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
