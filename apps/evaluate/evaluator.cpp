#include "apps/evaluate/evaluator.h"

#include "core/ops/elementwise.h"
#include "core/ops/host_values.h"

namespace ottava {

Evaluator::Evaluator(Options options, Device device, const ForwardModel::Allow& allow)
    : options_(options),
      model_({.model = options.model, .compute = options.compute, .sequence = options.sequence}, device) {
  model_.take_memory([&](Arena& arena) { build(arena); }, [&](const StepContext& c) { run(c); }, allow);
}

void Evaluator::build(Arena& arena) {
  const Shape shape{options_.batch, options_.sequence};
  tokens_ = arena.persistent("tokens", DType::i32, shape);
  targets_ = arena.persistent("targets", DType::i32, shape);
  document_start_ = arena.persistent("document starts", DType::i32, shape);
  positions_ = arena.persistent("positions", DType::i32, shape);
  loss_sum_ = arena.persistent("loss sum", DType::f32, {1});
  losses_ = arena.persistent("losses", DType::f32, {options_.batch * options_.sequence});
}

void Evaluator::run(const StepContext& c) {
  Arena::Phase phase(c.arena, "evaluate");
  fill_zero(c.stream, loss_sum_);
  c.parameters.begin_forward_only();
  const MicroBatch batch{.tokens = tokens_,
                         .targets = targets_,
                         .document_start = document_start_,
                         .positions = positions_,
                         .token_losses = losses_};
  model_.model().evaluate(c, model_.model().all_units(), batch, loss_sum_, {});
}

void Evaluator::losses(const HostTokens& tokens, std::span<float> out) {
  copy_from_host(stream(), tokens.inputs.data(), tokens_);
  copy_from_host(stream(), tokens.targets.data(), targets_);
  copy_from_host(stream(), tokens.document_start.data(), document_start_);
  copy_from_host(stream(), tokens.positions.data(), positions_);
  run(model_.context());
  copy_to_host(stream(), losses_, out.data());
  stream().synchronize();
}

}  // namespace ottava
