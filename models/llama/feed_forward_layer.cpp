#include "models/llama/feed_forward_layer.h"

#include <utility>

#include "core/ops/swiglu.h"

namespace ottava {
namespace {

using Producer = Float8Product::Producer;
constexpr std::string_view kSwiglu = "feed_forward.swiglu";

}  // namespace

FeedForwardLayer::FeedForwardLayer(const LlamaConfig& config, const LlamaBlockParameters& p, int tp,
                                   Pieces pieces)
    : norm_("ffn_norm", p.ffn_norm, config.norm_eps),
      w13_("feed_forward.w13", LinearStyle::column, {.weight = p.w13},
           pieces_or_one(std::move(pieces.w13), 2 * config.ffn_dim / tp),
           {.x = Producer::codes, .dy = Producer::codes}, pieces.w13_overlap),
      w2_("feed_forward.w2", LinearStyle::row, {.weight = p.w2},
          pieces_or_one(std::move(pieces.w2), config.dim), {.x = Producer::codes, .dy = Producer::codes},
          pieces.w2_overlap) {}

ResidualStream FeedForwardLayer::forward(const StepContext& c, ResidualStream in, Recompute recompute,
                                         Saved& saved) const {
  const bool keeps = recompute == Recompute::nothing;
  LinearInput *of_w13 = keeps ? &saved.w13 : nullptr, *of_w2 = keeps ? &saved.w2 : nullptr;
  const LinearOperand x = norm_.forward(c, std::move(in), w13_, of_w13, saved.norm);
  saved.gate_up = w13_.forward(c, x, of_w13);
  const Tensor& gate_up = saved.gate_up;
  LinearOperand s;
  {
    StepContext::Scope scope(c, kSwiglu);
    s = w2_.place_input(c, kSwiglu, {gate_up.rows(), gate_up.cols() / 2}, of_w2);
    swiglu_forward(c.stream,
                   {.gate_up = gate_up, .out = s.values, .amax = s.amax, .float8 = s.float8.output});
  }
  return {saved.norm.x, w2_.forward(c, s, of_w2)};
}

void FeedForwardLayer::recompute(const StepContext& c, ResidualStream in, Saved& saved) const {
  const LinearOperand x = norm_.forward(c, std::move(in), w13_, nullptr, saved.norm);
  saved.gate_up = w13_.forward(c, x, nullptr);
}

LinearOperand FeedForwardLayer::backward(const StepContext& c, LinearOperand dout, Saved& saved,
                                         const Linear& reader) const {
  Allocation dx;
  LinearOperand dgate_up;
  {
    LinearOutputGradient dy = w2_.output_gradient(c, dout);
    dout.float8 = {};
    const Tensor& gate_up = saved.gate_up;
    Allocation s;
    {
      Allocation ds = w2_.input_gradient(c, dy);
      if (!saved.w2) s = c.scratch(kSwiglu, c.compute, ds.tensor().shape);
      StepContext::Scope scope(c, kSwiglu);
      dgate_up = w13_.place_output_gradient(c, saved.gate_up);
      swiglu_backward(c.stream, {.dout = ds,
                                 .gate_up = gate_up,
                                 .dgate_up = gate_up,
                                 .out = s,
                                 .amax = dgate_up.amax,
                                 .float8 = dgate_up.float8.output});
    }
    if (!saved.w2) saved.w2 = w2_.keep(c, s);
    w2_.weight_gradient(c, dy, saved.w2);
    saved.w2 = {};
  }
  {
    if (!saved.w13) saved.w13 = w13_.keep(c, norm_.again(c, saved.norm));
    LinearOutputGradient dy = w13_.output_gradient(c, dgate_up);
    dgate_up = {};
    saved.gate_up.release();  // in FP8, dy is codes by now
    dx = w13_.backward(c, dy, std::exchange(saved.w13, {}));
  }
  LinearOperand gradient = norm_.backward(c, dx, saved.norm, dout.values, &reader);
  saved.norm.x.release();
  return gradient;
}

}  // namespace ottava
