#include "models/llama/forward_model.h"

#include <utility>

#include "core/cost.h"
#include "core/device_stream.h"
#include "core/ops/matmul/matmul.h"

namespace ottava {

ForwardModel::ForwardModel(Options options, Device device)
    : options_(std::move(options)), stream_(device_stream(device)), ranks_(solo_rank_groups()) {}

void ForwardModel::take_memory(const std::function<void(Arena& arena)>& build,
                               const std::function<void(const StepContext& context)>& run,
                               const Allow& allow) {
  int64_t workspace_bytes = 0;
  MemoryPlan plan;
  const auto build_all = [&](Arena& arena, Stream& stream) {
    build_model(arena, stream);
    build(arena);
    return arena.persistent("matmul workspace", DType::u8, {workspace_bytes}, MemoryCategory::workspace);
  };
  for (int pass = 0; pass < 2; ++pass) {  // the first learns the libraries' scratchpad
    CostRecorder recorder;
    Stream meta = Stream::meta(recorder, stream_.device());
    Arena recording;
    build_all(recording, meta);
    run(context_of(recording, meta));
    workspace_bytes = recorder.workspace_bytes();
    plan = recording.plan();
  }
  allow(plan);
  arena_ = std::make_unique<Arena>(plan, stream_.device());
  set_matmul_workspace(stream_, build_all(*arena_, stream_));
}

void ForwardModel::build_model(Arena& arena, Stream& stream) {
  const LlamaParameters table = llama_parameters(options_.model);
  parameters_ = std::make_unique<Fsdp>(stream, arena, ranks_, table.specs,
                                       FsdpOptions{.compute = options_.compute, .trains = false});
  model_ = std::make_unique<LlamaModel>(options_.model, table, stream, arena, 1,
                                        LlamaModelOptions{.sequence = options_.sequence});
}

StepContext ForwardModel::context_of(Arena& arena, Stream& stream) {
  return {.stream = stream,
          .arena = arena,
          .parameters = *parameters_,
          .tensor_parallel = alone_,
          .compute = options_.compute};
}

}  // namespace ottava
