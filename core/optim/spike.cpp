#include "core/optim/spike.h"

#include "core/check.h"
#include "core/optim/spike_rule.h"
#include "core/run_op.h"

namespace ottava {

void skip_spike(Stream& stream, const SkipSpike& args, const SpikeRule& rule) {
  constexpr std::string_view kOp = "skip_spike";
  check_tensor(kOp, "loss_sum", args.loss_sum, DType::f32, {1});
  check_tensor(kOp, "window", args.window, DType::f32, {2, rule.window});
  check_tensor(kOp, "known", args.known, DType::i64, {1});
  check_tensor(kOp, "found", args.found, DType::f32, {4});
  check_tensor(kOp, "scalars", args.scalars, DType::f32, {kStepScalars});
  check_tensor(kOp, "skipped", args.skipped, DType::i32, {1});
  run_op(
      stream, moving(kOp, args.window.bytes()), skip_spike,
      [&] { apply_spike_rule(memory_of(args), rule.window, rule.sigma); }, cuda::skip_spike, args, rule);
}

}  // namespace ottava
