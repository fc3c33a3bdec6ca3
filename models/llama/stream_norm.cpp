#include "models/llama/stream_norm.h"

#include "core/ops/norm/rms_norm.h"

namespace ottava {

LinearOperand StreamNorm::forward(const StepContext& c, ResidualStream in, const Linear& reader,
                                  const LinearInput* kept, Saved& saved) const {
  StepContext::Scope scope(c, name_);
  const Tensor& x = in.sum;
  saved.rstd = c.activation("rstd", DType::f32, {x.rows()});
  LinearOperand y = reader.place_input(c, name_, x.shape, kept);
  RmsNormForward args{.x = x,
                      .weight = c.parameters.weight(weight_),
                      .y = y.values,
                      .rstd = saved.rstd,
                      .amax = y.amax,
                      .float8 = y.float8.output,
                      .eps = eps_};
  if (in.delta) args.residual = args.sum = in.delta.tensor();
  rms_norm_forward(c.stream, args);
  saved.x = in.delta ? in.delta : in.sum;
  return y;
}

Allocation StreamNorm::again(const StepContext& c, const Saved& saved) const {
  StepContext::Scope scope(c, name_);
  Allocation y = c.scratch(name_, c.compute, saved.x.tensor().shape);
  rms_norm_forward(
      c.stream,
      {.x = saved.x, .weight = c.parameters.weight(weight_), .y = y, .rstd = saved.rstd, .eps = eps_});
  return y;
}

LinearOperand StreamNorm::backward(const StepContext& c, const Allocation& dy, const Saved& saved,
                                   const Allocation& residual, const Linear* reader) const {
  const Tensor dweight = c.parameters.zeroed_gradient(weight_);
  StepContext::Scope scope(c, "norm.backward");
  Allocation workspace =
      c.scratch("norm.workspace", DType::f32, rms_norm_workspace(c.stream, saved.x.tensor().cols()));
  const Allocation& dx = residual && !c.deferred ? residual : dy;
  LinearOperand out = reader ? reader->place_output_gradient(c, dx) : LinearOperand{.values = dx};
  rms_norm_backward(c.stream, {.dy = dy,
                               .x = saved.x,
                               .weight = c.parameters.weight(weight_),
                               .rstd = saved.rstd,
                               .dresidual = residual,
                               .dx = dx,
                               .dweight = dweight,
                               .workspace = workspace,
                               .amax = out.amax,
                               .float8 = out.float8.output});
  return out;
}

}  // namespace ottava
