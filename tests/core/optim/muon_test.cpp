#include "core/optim/muon.h"

#include <cmath>
#include <optional>

#include "core/cost.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/ops/matmul/matmul.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

using namespace ottava;
using namespace ottava::test;

namespace {

using Matrix = std::vector<double>;

/// out [m,n] = a [m,k] b [k,n].
Matrix product(const Matrix& a, const Matrix& b, int64_t m, int64_t k, int64_t n) {
  Matrix out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l)
        out[static_cast<size_t>(i * n + j)] +=
            a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * n + j)];
    }
  }
  return out;
}
Matrix transposed(const Matrix& a, int64_t m, int64_t n) {
  Matrix out(a.size());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) out[static_cast<size_t>(j * m + i)] = a[static_cast<size_t>(i * n + j)];
  }
  return out;
}

/// The algorithm as the paper writes it: tall matrices are transposed.
Matrix reference(Matrix x, int64_t m, int64_t n, const MuonHyper& hyper) {
  if (m > n) return transposed(reference(transposed(x, m, n), n, m, hyper), n, m);
  double norm = 0;
  for (double v : x) norm += v * v;
  for (double& v : x) v /= std::sqrt(norm) + 1e-7;
  const auto [a, b, c] = hyper.coefficients;
  for (int step = 0; step < hyper.steps; ++step) {
    Matrix gram = product(x, transposed(x, m, n), m, n, m);
    const Matrix squared = product(gram, gram, m, m, m);
    for (size_t i = 0; i < gram.size(); ++i) gram[i] = b * gram[i] + c * squared[i];
    const Matrix moved = product(gram, x, m, m, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + moved[i];
  }
  return x;
}

double distance(const std::vector<float>& got, const Matrix& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(got[i] - want[i], 2);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

struct Workspace {
  Workspace(Stream& stream, const Tensor& x)
      : gram(stream, x.dtype, {std::min(x.rows(), x.cols()), std::min(x.rows(), x.cols())}),
        gram_squared(stream, DType::f32, gram.tensor().shape),
        product(stream, DType::f32, x.shape),
        sums(stream, DType::f64, newton_schulz_sums(x.shape)),
        matmuls(stream, DType::u8, {int64_t{64} << 20}) {
    set_matmul_workspace(stream, matmuls);
  }
  DeviceBuffer gram, gram_squared, product, sums, matmuls;
};

void orthogonalise(Stream& stream, const Tensor& x, const MuonHyper& hyper = {}) {
  const Workspace w(stream, x);
  newton_schulz(
      stream, {.x = x, .gram = w.gram, .gram_squared = w.gram_squared, .product = w.product, .sums = w.sums},
      hyper);
  stream.synchronize();
}

std::vector<float> scalars_of(float factor, float lr) {
  std::vector<float> s(kStepScalars, 1.0f);
  s[kLearningRate] = lr;
  s[kGradientFactor] = factor;
  return s;
}

const Shape kShapes[] = {{1, 1}, {3, 17}, {17, 3}, {16, 16}, {40, 33}, {64, 160}};

}  // namespace

TEST_CASE("muon: Newton-Schulz agrees with the formula in FP64, wide and tall") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    for (const Shape& shape : kShapes) {
      INFO(to_string(shape));
      const std::vector<float> values = normal_values(shape.numel(), 3, dtype, 0.01f);
      DeviceBuffer x(stream, dtype, shape, values);
      const Matrix want = reference(as_double(values), shape[0], shape[1], {});
      orthogonalise(stream, x);
      // Each of five steps rounds operands once or twice and multiplies earlier errors by its slope, at most
      // a = 3.4 at 0 and less on average.
      CHECK(distance(x.floats(), want) < 16 * unit_roundoff(dtype) + 5 * sum_roundoff(shape[1]));
    }
  });
}

TEST_CASE("muon: singular values end near 1, zeros stay, scale does not matter") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const int64_t m = 24, n = 40;
    const std::vector<float> values = normal_values(m * n, 5, dtype);
    DeviceBuffer x(stream, dtype, {m, n}, values);
    orthogonalise(stream, x);
    const Matrix o = as_double(x.floats());
    // Their mean square is the trace of x x^T over m.
    const Matrix gram = product(o, transposed(o, m, n), m, n, m);
    double trace = 0, squares = 0;
    for (int64_t i = 0; i < m; ++i) trace += gram[static_cast<size_t>(i * m + i)];
    for (double g : gram) squares += g * g;
    CHECK(trace / m > 0.6);
    CHECK(trace / m < 1.2);
    CHECK(std::sqrt(squares / m - std::pow(trace / m, 2)) < 0.5);

    std::vector<float> larger = values;
    for (float& v : larger) v *= 1024;
    DeviceBuffer y(stream, dtype, {m, n}, larger);
    orthogonalise(stream, y);
    CHECK(distance(y.floats(), o) < 1e-6);

    DeviceBuffer zero(stream, dtype, {m, n}, std::vector<float>(static_cast<size_t>(m * n)));
    orthogonalise(stream, zero);
    for (float v : zero.floats()) CHECK(v == 0.0f);
  });
}

TEST_CASE("muon: momentum and weights agree with the formulas; a skipped step moves nothing") {
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const bool nesterov = GENERATE(true, false);
    const MuonHyper hyper{.nesterov = nesterov};
    for (int64_t n : {1, 15, 1000, 20000}) {
      INFO("n " << n);
      const std::vector<float> g = normal_values(n, 1), m = normal_values(n, 2), p = normal_values(n, 3);
      DeviceBuffer gradient(stream, DType::f32, {n}, g), momentum(stream, DType::f32, {n}, m),
          update(stream, dtype, {n}), master(stream, DType::f32, {n}, p), compute(stream, dtype, {n}),
          amax(stream, DType::u32, {1}), scalars(stream, DType::f32, {kStepScalars}, scalars_of(0.5f, 0.01f)),
          skipping(stream, DType::f32, {kStepScalars}, scalars_of(0, 0.01f));
      amax.upload_as<uint32_t>(std::array{0u});
      muon_momentum(stream, {{gradient, momentum, update}}, hyper, skipping);
      CHECK(momentum.floats() == m);
      for (float u : update.floats()) REQUIRE(u == 0.0f);
      muon_momentum(stream, {{gradient, momentum, update}}, hyper, scalars);
      Matrix want_m, want_u, size, want_p, size_p;
      for (size_t i = 0; i < g.size(); ++i) {
        const double mu = 0.95f, scaled = 0.5 * g[i], next = m[i] + (1 - mu) * (scaled - m[i]);
        want_m.push_back(next);
        want_u.push_back(nesterov ? scaled + mu * (next - scaled) : next);
        size.push_back(2 * (std::abs(scaled) + std::abs(m[i])));
      }
      check_close(momentum.floats(), want_m, tolerance(DType::f32, 4), size);
      check_close(update.floats(), want_u, tolerance(dtype, 8), size);

      const MuonWeight weight{.master = master,
                              .update = update,
                              .compute = compute,
                              .amax = amax,
                              .weight_decay = 0.1f,
                              .lr_factor = 0.5f,
                              .scale = 3};
      muon_apply(stream, {weight}, skipping);
      CHECK(master.floats() == p);
      CHECK(amax.download_as<uint32_t>()[0] == largest_bits(as_float(as_double([&] {
              std::vector<float> rounded;
              for (float x : p) rounded.push_back(static_cast<float>(bf16(x)));
              return rounded;
            }()))));
      amax.upload_as<uint32_t>(std::array{0u});
      muon_apply(stream, {weight}, scalars);
      const std::vector<float> u = update.floats();
      for (size_t i = 0; i < p.size(); ++i) {
        const double lr = static_cast<double>(0.01f) * 0.5;
        want_p.push_back(p[i] - lr * (static_cast<double>(0.1f) * p[i] + 3.0 * u[i]));
        size_p.push_back(std::abs(p[i]) + lr * (std::abs(p[i]) + 3 * std::abs(u[i])));
      }
      check_close(master.floats(), want_p, tolerance(DType::f32, 5), size_p);
      check_close(compute.floats(), as_double(master.floats()), tolerance(dtype, 0));
      std::vector<float> rounded;
      for (float x : master.floats()) rounded.push_back(static_cast<float>(bf16(x)));
      CHECK(amax.download_as<uint32_t>()[0] == largest_bits(rounded));
    }
  });
}

TEST_CASE("muon gives the bits of the whole for its parts, and for any number of threads") {
  struct Bits {
    std::vector<float> update, momentum, master, compute;
    std::vector<uint32_t> amax;
    bool operator==(const Bits&) const = default;
  };
  for_each_device_and_dtype([](Stream& stream, DType dtype) {
    const int64_t n = 40000;
    const std::vector<float> g = normal_values(n, 1), m = normal_values(n, 2), p = normal_values(n, 3);
    std::optional<Bits> first;
    for_each_thread_count([&](int) {
      for (int64_t cut : {int64_t{0}, int64_t{7}, int64_t{16384}}) {
        DeviceBuffer gradient(stream, DType::f32, {n}, g), momentum(stream, DType::f32, {n}, m),
            update(stream, dtype, {n}), master(stream, DType::f32, {n}, p), compute(stream, dtype, {n}),
            amax(stream, DType::u32, {1}),
            scalars(stream, DType::f32, {kStepScalars}, scalars_of(0.5f, 0.01f));
        amax.upload_as<uint32_t>(std::array{0u});
        auto part = [&](int64_t begin, int64_t end) {
          return MuonMomentum{gradient.tensor().slice(begin, end), momentum.tensor().slice(begin, end),
                              update.tensor().slice(begin, end)};
        };
        auto weight = [&](int64_t begin, int64_t end) {
          return MuonWeight{.master = master.tensor().slice(begin, end),
                            .update = update.tensor().slice(begin, end),
                            .compute = compute.tensor().slice(begin, end),
                            .amax = amax,
                            .weight_decay = 0.1f,
                            .lr_factor = 0.5f,
                            .scale = 3};
        };
        muon_momentum(stream, {part(0, cut), part(cut, n)}, {}, scalars);
        muon_apply(stream, {weight(0, cut), weight(cut, n)}, scalars);
        const Bits bits{update.floats(), momentum.floats(), master.floats(), compute.floats(),
                        amax.download_as<uint32_t>()};
        if (!first) first = bits;
        CHECK((bits == *first));
      }
    });
  });
}

TEST_CASE("muon takes the steps of torch.optim.Muon") {
  const Json golden = Json::parse(read_file(OTTAVA_SOURCE_DIR "/tests/golden/muon.json"), "muon.json");
  auto numbers = [](int64_t count, int64_t seed) {
    std::vector<float> out;
    for (int64_t i = 0; i < count; ++i) {
      auto x = static_cast<uint32_t>((i + 1) * 2654435761 + seed * 40503);
      x = (x ^ x >> 15) * 2246822519u;
      out.push_back(static_cast<float>(static_cast<int>((x ^ x >> 13) % 2003) - 1001) / 1024);
    }
    return out;
  };
  const Json::Array& cases = golden.at("cases", "muon.json").as_array("cases");
  REQUIRE(cases.size() == 3);
  for_each_device_and_dtype([&](Stream& stream, DType dtype) {
    for (const Json& c : cases) {
      auto number = [&](const char* name) { return c.at(name, "case").as_number(name); };
      auto list = [&](const char* name) {
        Matrix out;
        for (const Json& x : c.at(name, "case").as_array(name)) out.push_back(x.as_number(name));
        return out;
      };
      const auto m = static_cast<int64_t>(number("rows")), n = static_cast<int64_t>(number("columns"));
      INFO(m << " x " << n);
      const bool matches_rms = c.at("adjust_lr_fn", "case").as_string("adjust_lr_fn") == "match_rms_adamw";
      const double rows = static_cast<double>(m), columns = static_cast<double>(n),
                   scale = matches_rms ? 0.2 * std::sqrt(std::max(rows, columns))
                                       : std::sqrt(std::max(1.0, rows / columns));
      const MuonHyper hyper{.nesterov = c.at("nesterov", "case").as_bool("nesterov")};
      DeviceBuffer master(stream, DType::f32, {m, n}, numbers(m * n, 1)),
          gradient(stream, DType::f32, {m, n}),
          momentum(stream, DType::f32, {m, n}, std::vector<float>(static_cast<size_t>(m * n))),
          update(stream, dtype, {m, n}),
          scalars(stream, DType::f32, {kStepScalars}, scalars_of(1, static_cast<float>(number("lr"))));
      for (int64_t step = 0; step < 3; ++step) {
        gradient.upload(numbers(m * n, 2 + step));
        muon_momentum(stream, {{gradient, momentum, update}}, hyper, scalars);
        orthogonalise(stream, update, hyper);
        muon_apply(stream,
                   {{.master = master,
                     .update = update,
                     .compute = {},
                     .amax = {},
                     .weight_decay = static_cast<float>(number("weight_decay")),
                     .scale = static_cast<float>(scale)}},
                   scalars);
      }
      CHECK(distance(momentum.floats(), list("momentum")) < 2e-6);
      // PyTorch rounds to bf16 at every operation; what it moved the weights by is the measure.
      const std::vector<float> before = numbers(m * n, 1), after = master.floats();
      std::vector<float> moved;
      Matrix want = list("weights");
      for (size_t i = 0; i < after.size(); ++i) {
        moved.push_back(after[i] - before[i]);
        want[i] -= before[i];
      }
      CHECK(distance(moved, want) < 0.02);
    }
  });
}

TEST_CASE("muon on meta records products and bytes, and refuses tensors that do not fit") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, {DeviceType::cpu, 0});
  const NewtonSchulz good{.x = shape_only(DType::bf16, {32, 96}),
                          .gram = shape_only(DType::bf16, {32, 32}),
                          .gram_squared = shape_only(DType::f32, {32, 32}),
                          .product = shape_only(DType::f32, {32, 96}),
                          .sums = shape_only(DType::f64, newton_schulz_sums({32, 96}))};
  newton_schulz(stream, good, {});
  CHECK(recorder.flops(Precision::bf16) == 5.0 * (33.0 * 32 * 96 + 33.0 * 32 * 32 + 2.0 * 32 * 32 * 96));
  auto says = [&](auto&& change, const std::string& message, MuonHyper hyper = {}) {
    NewtonSchulz args = good;
    change(args);
    CHECK_THROWS_WITH(newton_schulz(stream, args, hyper), "[newton_schulz] " + message);
  };
  says([](auto& a) { a.x = shape_only(DType::bf16, {32}); },
       "x is bf16 [32], expected a matrix with elements");
  says(
      [](auto& a) {
        a.gram = shape_only(DType::bf16, {96, 96});
      },
      "gram is bf16 [96, 96], expected bf16 [32, 32]");
  says([](auto& a) { a.product.dtype = DType::bf16; }, "product is bf16 [32, 96], expected f32 [32, 96]");
  says([](auto&) {}, "0 steps, expected at least 1", {.steps = 0});
  const Tensor scalars = shape_only(DType::f32, {kStepScalars}), x = shape_only(DType::f32, {4, 4});
  CHECK_THROWS_WITH(muon_momentum(stream, {{x, x, x}, {x, shape_only(DType::f32, {4}), x}}, {}, scalars),
                    "[muon_momentum] tensor 1: momentum is f32 [4], expected f32 [4, 4]");
  CHECK_THROWS_WITH(muon_momentum(stream, {{x, x, shape_only(DType::i32, {4, 4})}}, {}, scalars),
                    "[muon_momentum] tensor 0: update is i32 [4, 4], expected f32 or bf16");
  CHECK_THROWS_WITH(
      muon_apply(stream, {{.master = x, .update = shape_only(DType::bf16, {4}), .compute = {}, .amax = {}}},
                 scalars),
      "[muon_apply] tensor 0: update is bf16 [4], expected bf16 [4, 4]");
}
