#include "core/ops/matmul/matmul.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "core/cpu/matmul_cache.h"
#include "tests/core/ops/matmul/matmul_problem.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/skip.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

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

TEST_CASE("matmul scales the sums before it rounds or adds them, where it says that it can") {
  Stream stream = Stream::cpu();
  bool is_taken = false;
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
          is_taken = true;
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
  if (!is_taken) skip("no product takes a scale with these instructions");
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
      if (stream.type() == DeviceType::cpu && dtype == DType::f32) CHECK(made > 0);
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
