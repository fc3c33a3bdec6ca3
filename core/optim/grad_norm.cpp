#include "core/optim/grad_norm.h"

#include <cfloat>
#include <cmath>
#include <functional>

#include "core/check.h"
#include "core/optim/grad_norm_kernels.h"
#include "core/optim/spike.h"
#include "core/optim/step_scalars.h"
#include "core/optim/tensor_chunks.h"
#include "core/run_op.h"
#include "core/sum_of.h"

namespace ottava {
namespace {

constexpr std::string_view kNorm = "grad_norm_squared", kClip = "clip_factor";

void norm_on_cpu(const std::vector<Tensor>& gradients, const Tensor& out, const Tensor& workspace) {
  const TensorChunks chunks = chunks_of(gradients, std::identity());
  auto kernel = cpu::grad_norm_kernels().sum_of_squares;
  double* sums = workspace.as<double>();
  chunks.for_each([&](const TensorChunks::Chunk& c) {
    sums[c.index] = kernel(gradients[c.tensor].as<float>() + c.begin, c.end - c.begin);
  });
  double total = 0;
  for (int64_t i = 0; i < chunks.count(); ++i) total += sums[i];
  *out.as<double>() = total;
}

void clip_on_cpu(const Tensor& sum_of_squares, float max_norm, const Tensor& step_scalars,
                 const Tensor& skipped) {
  float* scalars = step_scalars.as<float>();
  const double loss_scale = scalars[kLossScale], norm = std::sqrt(*sum_of_squares.as<double>()) / loss_scale;
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  const float factor = static_cast<float>(clip / loss_scale);
  // With a factor that underflows, or that the update takes for zero, only weight decay would be left: it
  // counts as a skip too.
  const bool usable = std::isfinite(static_cast<float>(norm)) && std::isfinite(factor) && factor >= FLT_MIN;
  scalars[kGradientNorm] = static_cast<float>(norm);
  scalars[kGradientFactor] = usable ? factor : 0.0f;
  *skipped.as<int32_t>() = usable ? kNotSkipped : kNotFinite;
}

}  // namespace

Shape grad_norm_workspace(const std::vector<Shape>& gradients) {
  return {chunks_of(gradients, std::identity()).count()};
}

void grad_norm_squared(Stream& stream, const std::vector<Tensor>& gradients, const Tensor& out,
                       const Tensor& workspace) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].dtype == DType::f32) continue;
    fail<ShapeError>(kNorm, "gradient {} is {}, expected f32", i, describe(gradients[i]));
  }
  check_tensor(kNorm, "out", out, DType::f64, {1});
  check_tensor(kNorm, "workspace", workspace, DType::f64, {chunks_of(gradients, std::identity()).count()});
  run_op(stream, moving(kNorm, sum_of(gradients, &Tensor::bytes)), grad_norm_squared, norm_on_cpu,
         cuda::grad_norm_squared, gradients, out, workspace);
}

void clip_factor(Stream& stream, const Tensor& sum_of_squares, float max_norm, const Tensor& scalars,
                 const Tensor& skipped) {
  check_tensor(kClip, "sum_of_squares", sum_of_squares, DType::f64, {1});
  check_tensor(kClip, "scalars", scalars, DType::f32, {kStepScalars});
  check_tensor(kClip, "skipped", skipped, DType::i32, {1});
  run_op(stream, moving(kClip, sum_of_squares.bytes() + scalars.bytes()), clip_factor, clip_on_cpu,
         cuda::clip_factor, sum_of_squares, max_norm, scalars, skipped);
}

}  // namespace ottava
