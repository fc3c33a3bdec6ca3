#include "core/optim/spike.h"

#include "core/cost.h"
#include "core/ops/check.h"
#include "core/optim/spike_rule.h"

namespace ottava {

void skip_spike(Stream& stream, const SkipSpike& args, const SpikeRule& rule) {
  constexpr std::string_view kOp = "skip_spike";
  check_tensor(kOp, "loss_sum", args.loss_sum, DType::f32, {1});
  check_tensor(kOp, "window", args.window, DType::f32, {2, rule.window});
  check_tensor(kOp, "known", args.known, DType::i64, {1});
  check_tensor(kOp, "found", args.found, DType::f32, {4});
  check_tensor(kOp, "scalars", args.scalars, DType::f32, {kStepScalars});
  check_tensor(kOp, "skipped", args.skipped, DType::i32, {1});
  switch (stream.type()) {
    case DeviceType::cpu:
      return apply_spike_rule(memory_of(args), rule.window, rule.sigma);
    case DeviceType::cuda:
      return cuda::skip_spike(stream, args, rule);
    case DeviceType::meta:
      stream.recorder().record({.op = kOp, .bytes = static_cast<double>(args.window.bytes())}, skip_spike,
                               args, rule);
  }
}

}  // namespace ottava
