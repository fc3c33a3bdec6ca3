#include "core/optim/adamw.h"

#include "core/check.h"
#include "core/cpu/no_subnormals.h"
#include "core/optim/adamw_kernels.h"
#include "core/optim/tensor_checks.h"
#include "core/optim/tensor_chunks.h"
#include "core/raise_amax.h"
#include "core/run_op.h"

namespace ottava {
namespace {

constexpr std::string_view kOp = "adamw";

void check(const std::vector<AdamwTensor>& tensors, const Tensor& scalars, const Tensor& step) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AdamwTensor& t = tensors[i];
    const Shape& shape = t.master.shape;
    require(kOp, i, "master", t.master, DType::f32, shape);
    require(kOp, i, "gradient", t.gradient, DType::f32, shape);
    require_float(kOp, i, "exp_avg", t.exp_avg, shape);
    require(kOp, i, "exp_avg_sq", t.exp_avg_sq, t.exp_avg.dtype, shape);
    require(kOp, i, "bias_correction", t.bias_correction, DType::f32, {2});
    if (!t.compute.empty()) require_float(kOp, i, "compute", t.compute, shape);
    if (!t.amax.empty()) require(kOp, i, "amax", t.amax, DType::u32, {1});
  }
  check_tensor(kOp, "scalars", scalars, DType::f32, {kStepScalars});
  check_tensor(kOp, "step", step, DType::i64, {1});
}

void adamw_on_cpu(const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
                  const Tensor& step_scalars, const Tensor& counted_steps) {
  const float* scalars = step_scalars.as<float>();
  const int64_t step = *counted_steps.as<int64_t>();
  const bool is_skipped = scalars[kGradientFactor] == 0;
  const AdamwStep shared{hyper, scalars[kGradientFactor]};
  const auto& kernels = cpu::adamw_kernels();
  chunks_of(tensors, &AdamwTensor::master).for_each([&](const TensorChunks::Chunk& c) {
    const AdamwTensor& t = tensors[c.tensor];
    if (is_skipped) {
      if (!t.amax.empty())
        raise_amax(t.amax, kernels.weight_amax(t.master.as<float>() + c.begin, c.end - c.begin));
      return;
    }
    const cpu::NoSubnormals flushed;
    const float* correction = t.bias_correction.as<float>();
    const auto& by_compute = t.exp_avg.dtype == DType::f32 ? kernels.f32_states : kernels.bf16_states;
    uint32_t amax = by_compute[t.compute.dtype](
        shared, {.master = t.master.as<float>() + c.begin,
                 .gradient = t.gradient.as<float>() + c.begin,
                 .exp_avg = t.exp_avg.at(c.begin),
                 .exp_avg_sq = t.exp_avg_sq.at(c.begin),
                 .compute = t.compute.at(c.begin),
                 .n = c.end - c.begin,
                 .first_element = static_cast<uint64_t>(t.first_element + c.begin),
                 .random_stream = t.key + static_cast<uint64_t>(step) * 0x9E3779B97F4A7C15u,
                 .bias_correction1 = correction[0],
                 .bias_correction2 = correction[1],
                 .weight_decay = t.weight_decay,
                 .learning_rate = scalars[kLearningRate] * t.lr_factor});
    raise_amax(t.amax, amax);
  });
}

}  // namespace

void adamw(Stream& stream, const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
           const Tensor& scalars, const Tensor& step) {
  check(tensors, scalars, step);
  double bytes = 0;
  for (const AdamwTensor& t : tensors) {
    const int64_t compute = t.compute.empty() ? 0 : t.compute.bytes();
    bytes += 2 * t.master.bytes() + t.gradient.bytes() + 4 * t.exp_avg.bytes() + compute;
  }
  run_op(stream, {.op = kOp, .bytes = bytes}, adamw, adamw_on_cpu, cuda::adamw, tensors, hyper, scalars,
         step);
}

}  // namespace ottava
