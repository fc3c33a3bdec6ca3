#include "core/optim/adamw.h"

#include "core/ops/check.h"
#include "core/optim/adamw_kernels.h"
#include "core/optim/tensor_chunks.h"
#include "core/run_op.h"

namespace ottava {
namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

void require(size_t index, std::string_view name, const Tensor& tensor, DType dtype, const Shape& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return;
  fail<ShapeError>("adamw", "tensor {}: {} is {}, expected {} {}", index, name, describe(tensor),
                   name_of(dtype), to_string(shape));
}
void require_float(size_t index, std::string_view name, const Tensor& tensor) {
  if (is_float(tensor.dtype)) return;
  fail<ShapeError>("adamw", "tensor {}: {} is {}, expected f32 or bf16", index, name, describe(tensor));
}

void check(const std::vector<AdamwTensor>& tensors, const Tensor& scalars, const Tensor& step) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AdamwTensor& t = tensors[i];
    const Shape& shape = t.master.shape;
    require(i, "master", t.master, DType::f32, shape);
    require(i, "gradient", t.gradient, DType::f32, shape);
    require_float(i, "exp_avg", t.exp_avg);
    require(i, "exp_avg", t.exp_avg, t.exp_avg.dtype, shape);
    require(i, "exp_avg_sq", t.exp_avg_sq, t.exp_avg.dtype, shape);
    if (!t.compute.empty()) {
      require_float(i, "compute", t.compute);
      require(i, "compute", t.compute, t.compute.dtype, shape);
    }
    if (!t.amax.empty()) require(i, "amax", t.amax, DType::u32, {1});
  }
  check_tensor("adamw", "scalars", scalars, DType::f32, {kStepScalars});
  check_tensor("adamw", "step", step, DType::i64, {1});
}

char* element(const Tensor& t, int64_t i) {
  return t.data ? static_cast<char*>(t.data) + i * static_cast<int64_t>(size_of(t.dtype)) : nullptr;
}

void adamw_on_cpu(const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
                  const Tensor& step_scalars, const Tensor& counted_steps) {
  const float* scalars = step_scalars.as<float>();
  const int64_t step = *counted_steps.as<int64_t>();
  const bool is_skipped = scalars[kGradientFactor] == 0;
  const AdamwStep shared{hyper, scalars[kGradientFactor], scalars[kBiasCorrection1],
                         scalars[kBiasCorrection2]};
  const auto& kernels = cpu::adamw_kernels();
  TensorChunks chunks;
  for (const AdamwTensor& t : tensors) chunks.add(t.master.numel());
  chunks.for_each([&](const TensorChunks::Chunk& c) {
    const AdamwTensor& t = tensors[c.tensor];
    if (is_skipped) {
      if (!t.amax.empty())
        raise_amax(t.amax, kernels.weight_amax(t.master.as<float>() + c.begin, c.end - c.begin));
      return;
    }
    const auto& by_compute = t.exp_avg.dtype == DType::f32 ? kernels.f32_states : kernels.bf16_states;
    uint32_t amax = by_compute[t.compute.dtype](
        shared, {.master = t.master.as<float>() + c.begin,
                 .gradient = t.gradient.as<float>() + c.begin,
                 .exp_avg = element(t.exp_avg, c.begin),
                 .exp_avg_sq = element(t.exp_avg_sq, c.begin),
                 .compute = element(t.compute, c.begin),
                 .n = c.end - c.begin,
                 .first_element = static_cast<uint64_t>(t.first_element + c.begin),
                 .random_stream = t.key + static_cast<uint64_t>(step) * 0x9E3779B97F4A7C15u,
                 .weight_decay = t.weight_decay,
                 .learning_rate = scalars[kLearningRate] * t.lr_factor});
    if (!t.amax.empty()) raise_amax(t.amax, amax);
  });
}

}  // namespace

void adamw(Stream& stream, const std::vector<AdamwTensor>& tensors, const AdamwHyper& hyper,
           const Tensor& scalars, const Tensor& step) {
  check(tensors, scalars, step);
  double bytes = 0;
  for (const AdamwTensor& t : tensors) {
    const int64_t compute = t.compute.empty() ? 0 : t.compute.bytes();
    bytes += static_cast<double>(2 * t.master.bytes() + t.gradient.bytes() + 4 * t.exp_avg.bytes() + compute);
  }
  run_op(stream, {.op = "adamw", .bytes = bytes}, adamw, adamw_on_cpu, cuda::adamw, tensors, hyper, scalars,
         step);
}

}  // namespace ottava
