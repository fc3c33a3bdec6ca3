#include "models/linear.h"

#include <utility>

#include "core/ops/matmul.h"

namespace ottava {

Linear::Linear(std::string name, LinearStyle style, int weight, int bias)
    : name_(std::move(name)), style_(style), weight_(weight), bias_(bias) {}

Allocation Linear::forward(const StepContext& c, const Allocation& x, LinearInput* saved) const {
  StepContext::Scope scope(c, name_);
  Tensor weight = c.parameters.weight(weight_);
  Allocation input = style_ == LinearStyle::column ? c.tensor_parallel.gather_rows(c.stream, c.arena, x, name_) : x;
  Allocation y = c.activation(name_, c.compute, {input.tensor().rows(), weight.rows()});
  matmul(c.stream, {.kind = MatmulKind::forward, .a = input, .b = weight, .out = y});
  if (bias_ >= 0) add_bias(c.stream, y, c.parameters.weight(bias_));
  if (saved) *saved = keep(c, x);
  return style_ == LinearStyle::row ? c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, y, name_) : y;
}

LinearInput Linear::keep(const StepContext&, const Allocation& x) const { return {x}; }

LinearOutputGradient Linear::output_gradient(const StepContext& c, const Allocation& dy) const {
  StepContext::Scope scope(c, name_);
  return {style_ == LinearStyle::row ? c.tensor_parallel.gather_rows(c.stream, c.arena, dy, name_) : dy};
}

Allocation Linear::input_gradient(const StepContext& c, const LinearOutputGradient& gradient) const {
  StepContext::Scope scope(c, name_);
  Tensor weight = c.parameters.weight(weight_);
  Allocation dx = c.scratch(name_ + ".dx", c.compute, {gradient.dy.tensor().rows(), weight.cols()});
  matmul(c.stream, {.kind = MatmulKind::input_gradient, .a = gradient.dy, .b = weight, .out = dx});
  return style_ == LinearStyle::column ? c.tensor_parallel.reduce_scatter_rows(c.stream, c.arena, dx, name_) : dx;
}

void Linear::weight_gradient(const StepContext& c, const LinearOutputGradient& gradient, const LinearInput& saved) const {
  StepContext::Scope scope(c, name_);
  Allocation x = style_ == LinearStyle::column ? c.tensor_parallel.gather_rows(c.stream, c.arena, saved.x, name_) : saved.x;
  Fsdp::Gradient dw = c.parameters.gradient(weight_);
  matmul(c.stream, {.kind = MatmulKind::weight_gradient, .a = gradient.dy, .b = x, .out = dw.tensor, .accumulate = dw.accumulate});
  if (bias_ >= 0) bias_gradient(c.stream, gradient.dy, c.parameters.zeroed_gradient(bias_));
}

}  // namespace ottava
