#include "apps/evaluate/evaluator.h"

#include "core/ops/elementwise.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {
namespace {

Stream stream_of(Device device) {
  return device.type == DeviceType::cuda ? Stream::cuda(device.index) : Stream::cpu();
}

}  // namespace

Evaluator::Evaluator(Options options, Device device)
    : options_(options), stream_(stream_of(device)), ranks_(solo_rank_groups()) {
  int64_t workspace_bytes = 0;
  MemoryPlan plan;
  for (int pass = 0; pass < 2; ++pass) {  // the first learns the libraries' scratchpad
    CostRecorder recorder;
    Stream meta = Stream::meta(recorder, device);
    Arena recording;
    build(recording, meta);
    recording.persistent("matmul workspace", DType::u8, {workspace_bytes}, MemoryCategory::workspace);
    run(recording, meta);
    workspace_bytes = recorder.workspace_bytes();
    plan = recording.plan();
  }
  arena_ = std::make_unique<Arena>(plan, device);
  build(*arena_, stream_);
  set_matmul_workspace(stream_, arena_->persistent("matmul workspace", DType::u8, {workspace_bytes},
                                                   MemoryCategory::workspace));
}

void Evaluator::build(Arena& arena, Stream& stream) {
  const LlamaConfig& m = options_.model;
  LlamaParameters table = llama_parameters(m);
  parameters_ = std::make_unique<Fsdp>(stream, arena, ranks_, table.specs,
                                       FsdpOptions{.compute = options_.compute, .trains = false});
  model_ = std::make_unique<LlamaModel>(m, table, stream, arena, 1,
                                        LlamaModelOptions{.sequence = options_.sequence, .recompute = {}});
  const Shape shape{options_.batch, options_.sequence};
  tokens_ = arena.persistent("tokens", DType::i32, shape, MemoryCategory::data);
  targets_ = arena.persistent("targets", DType::i32, shape, MemoryCategory::data);
  document_start_ = arena.persistent("document starts", DType::i32, shape, MemoryCategory::data);
  positions_ = arena.persistent("positions", DType::i32, shape, MemoryCategory::data);
  loss_sum_ = arena.persistent("loss sum", DType::f32, {1}, MemoryCategory::data);
  losses_ =
      arena.persistent("losses", DType::f32, {options_.batch * options_.sequence}, MemoryCategory::data);
}

void Evaluator::run(Arena& arena, Stream& stream) {
  Arena::Phase phase(arena, "evaluate");
  fill_zero(stream, loss_sum_);
  parameters_->begin_forward_only();
  TensorParallelGroup alone;
  const StepContext context{.stream = stream,
                            .arena = arena,
                            .parameters = *parameters_,
                            .tensor_parallel = alone,
                            .compute = options_.compute};
  const MicroBatch batch{.tokens = tokens_,
                         .targets = targets_,
                         .document_start = document_start_,
                         .positions = positions_,
                         .token_losses = losses_};
  model_->evaluate(context, model_->all_units(), batch, loss_sum_, {});
}

void Evaluator::losses(const HostTokens& tokens, std::span<float> out) {
  cast(stream_, view_of(tokens.inputs.data(), tokens_.shape), tokens_);
  cast(stream_, view_of(tokens.targets.data(), targets_.shape), targets_);
  cast(stream_, view_of(tokens.document_start.data(), document_start_.shape), document_start_);
  cast(stream_, view_of(tokens.positions.data(), positions_.shape), positions_);
  run(*arena_, stream_);
  cast(stream_, losses_, view_of(out.data(), losses_.shape));
  stream_.synchronize();
}

}  // namespace ottava
