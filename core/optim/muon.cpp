#include "core/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/cpu/no_subnormals.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"
#include "core/optim/adamw_kernels.h"
#include "core/optim/grad_norm.h"
#include "core/optim/muon_kernels.h"
#include "core/optim/tensor_checks.h"
#include "core/optim/tensor_chunks.h"
#include "core/raise_amax.h"
#include "core/run_op.h"
#include "core/threads/parallel_for.h"

namespace ottava {
namespace {

constexpr std::string_view kMomentum = "muon_momentum", kApply = "muon_apply",
                           kDivideByNorm = "muon_divide_by_norm", kCombine = "muon_combine",
                           kNewtonSchulz = "newton_schulz";
constexpr double kNormEps = 1e-7;
constexpr int64_t kGrain = 16384;

void apply_on_cpu(const std::vector<MuonWeight>& tensors, const Tensor& step_scalars) {
  const float* scalars = step_scalars.as<float>();
  const auto& kernels = cpu::muon_kernels();
  chunks_of(tensors, &MuonWeight::master).for_each([&](const TensorChunks::Chunk& c) {
    const MuonWeight& t = tensors[c.tensor];
    float* master = t.master.as<float>() + c.begin;
    const int64_t n = c.end - c.begin;
    if (scalars[kGradientFactor] == 0) {
      if (!t.amax.empty()) raise_amax(t.amax, cpu::adamw_kernels().weight_amax(master, n));
      return;
    }
    const auto& by_compute = t.update.dtype == DType::f32 ? kernels.apply_f32 : kernels.apply_bf16;
    const uint32_t amax = by_compute[t.compute.dtype]({.master = master,
                                                       .update = t.update.at(c.begin),
                                                       .compute = t.compute.at(c.begin),
                                                       .n = n,
                                                       .weight_decay = t.weight_decay,
                                                       .learning_rate = scalars[kLearningRate] * t.lr_factor,
                                                       .scale = t.scale});
    raise_amax(t.amax, amax);
  });
}

void combine_on_cpu(const Tensor& x, float a, const Tensor& y, float b) {
  auto kernel = cpu::muon_kernels().combine[x.dtype];
  parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    kernel(x.at(begin), y.as<float>() + begin, end - begin, a, b);
  });
}

// x = a x + b y.
void muon_combine(Stream& stream, const Tensor& x, float a, const Tensor& y, float b) {
  run_op(stream, moving(kCombine, 2 * x.bytes() + y.bytes()), muon_combine, combine_on_cpu,
         cuda::muon_combine, x, a, y, b);
}

// x = y / (sqrt(sum_of_squares) + eps).
void muon_divide_by_norm(Stream& stream, const Tensor& x, const Tensor& y, const Tensor& sum_of_squares) {
  const auto on_cpu = [&] {
    combine_on_cpu(x, 0, y, static_cast<float>(1 / (std::sqrt(*sum_of_squares.as<double>()) + kNormEps)));
  };
  run_op(stream, moving(kDivideByNorm, x.bytes() + y.bytes()), muon_divide_by_norm, on_cpu,
         cuda::muon_divide_by_norm, x, y, sum_of_squares);
}

void check(const NewtonSchulz& a, const MuonHyper& hyper) {
  check_float(kNewtonSchulz, "x", a.x);
  if (a.x.shape.rank() != 2 || a.x.numel() == 0)
    fail<ShapeError>(kNewtonSchulz, "x is {}, expected a matrix with elements", describe(a.x));
  const int64_t k = std::min(a.x.rows(), a.x.cols());
  check_tensor(kNewtonSchulz, "gram", a.gram, a.x.dtype, {k, k});
  check_tensor(kNewtonSchulz, "gram_squared", a.gram_squared, DType::f32, {k, k});
  check_tensor(kNewtonSchulz, "product", a.product, DType::f32, a.x.shape);
  check_tensor(kNewtonSchulz, "sums", a.sums, DType::f64, newton_schulz_sums(a.x.shape));
  if (hyper.steps < 1) fail<ShapeError>(kNewtonSchulz, "{} steps, expected at least 1", hyper.steps);
}

}  // namespace

void muon_momentum(Stream& stream, const std::vector<MuonMomentum>& tensors, const MuonHyper& hyper,
                   const Tensor& scalars) {
  double bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const MuonMomentum& t = tensors[i];
    require(kMomentum, i, "gradient", t.gradient, DType::f32, t.gradient.shape);
    require(kMomentum, i, "momentum", t.momentum, DType::f32, t.gradient.shape);
    require_float(kMomentum, i, "update", t.update, t.gradient.shape);
    bytes += 3 * t.gradient.bytes() + t.update.bytes();
  }
  check_tensor(kMomentum, "scalars", scalars, DType::f32, {kStepScalars});
  const auto on_cpu = [&] {
    const float factor = scalars.as<float>()[kGradientFactor];
    chunks_of(tensors, &MuonMomentum::gradient).for_each([&](const TensorChunks::Chunk& c) {
      const MuonMomentum& t = tensors[c.tensor];
      if (factor == 0) {
        std::fill_n(t.update.at(c.begin), (c.end - c.begin) * size_of(t.update.dtype), 0);
        return;
      }
      const cpu::NoSubnormals flushed;
      cpu::muon_kernels().momentum[t.update.dtype](t.gradient.as<float>() + c.begin,
                                                   t.momentum.as<float>() + c.begin, t.update.at(c.begin),
                                                   c.end - c.begin, factor, hyper);
    });
  };
  run_op(stream, {.op = kMomentum, .bytes = bytes}, muon_momentum, on_cpu, cuda::muon_momentum, tensors,
         hyper, scalars);
}

Shape newton_schulz_sums(const Shape& x) { return {1 + grad_norm_workspace({x})[0]}; }

void newton_schulz(Stream& stream, const NewtonSchulz& args, const MuonHyper& hyper) {
  check(args, hyper);
  const auto& [x, gram, gram_squared, product, sums] = args;
  const auto [a, b, c] = hyper.coefficients;
  const bool is_wide = x.rows() <= x.cols();
  const Tensor sum = sums.slice(0, 1);
  cast(stream, x, product);
  grad_norm_squared(stream, {product}, sum, sums.slice(1, sums.numel()));
  muon_divide_by_norm(stream, x, product, sum);
  for (int step = 0; step < hyper.steps; ++step) {
    const MatmulKind squares = is_wide ? MatmulKind::forward : MatmulKind::weight_gradient;
    matmul(stream, {.kind = squares, .a = x, .b = x, .out = gram, .result = MatmulResult::symmetric});
    matmul(stream, {.kind = MatmulKind::input_gradient,
                    .a = gram,
                    .b = gram,
                    .out = gram_squared,
                    .result = MatmulResult::symmetric});
    muon_combine(stream, gram, b, gram_squared, c);
    matmul(stream, {.kind = MatmulKind::input_gradient,
                    .a = is_wide ? gram : x,
                    .b = is_wide ? x : gram,
                    .out = product});
    muon_combine(stream, x, a, product, 1);
  }
}

void muon_apply(Stream& stream, const std::vector<MuonWeight>& tensors, const Tensor& scalars) {
  double bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const MuonWeight& t = tensors[i];
    require(kApply, i, "master", t.master, DType::f32, t.master.shape);
    require_float(kApply, i, "update", t.update, t.master.shape);
    if (!t.compute.empty()) require_float(kApply, i, "compute", t.compute, t.master.shape);
    if (!t.amax.empty()) require(kApply, i, "amax", t.amax, DType::u32, {1});
    bytes += 2 * t.master.bytes() + t.update.bytes() + (t.compute.empty() ? 0 : t.compute.bytes());
  }
  check_tensor(kApply, "scalars", scalars, DType::f32, {kStepScalars});
  run_op(stream, {.op = kApply, .bytes = bytes}, muon_apply, apply_on_cpu, cuda::muon_apply, tensors,
         scalars);
}

}  // namespace ottava
