#pragma once

#include <memory>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/step/step_plan.h"
#include "apps/step/training_engine.h"
#include "core/device_stream.h"

namespace ottava::test {

/// A TrainingEngine with its plan and memory, on one rank, for tests of the whole model.
class EngineRun {
 public:
  explicit EngineRun(TrainingShape shape, Device device = {DeviceType::cpu, 0})
      : EngineRun(std::move(shape), std::make_unique<RankGroups>(solo_rank_groups()), device) {}
  EngineRun(TrainingShape shape, std::unique_ptr<RankGroups> ranks, Device device)
      : ranks_(std::move(ranks)),
        stream_(device_stream(device)),
        plan_(record_step(shape, device, *ranks_)),
        arena_(plan_.memory, device),
        engine_(std::move(shape), stream_, arena_, *ranks_, plan_.matmul_workspace_bytes) {
    stream_.record_into(*done_);
  }

  TrainingEngine& operator*() { return engine_; }
  TrainingEngine* operator->() { return &engine_; }
  const StepPlan& plan() const { return plan_; }
  RankGroups& ranks() { return *ranks_; }
  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }
  /// What was done so far; of graphs only how they were recorded.
  CostRecorder& done() { return *done_; }

  /// The rank's shard of a parameter's gradient, master, ... as host floats.
  std::vector<float> values(const Tensor& tensor);

 private:
  std::unique_ptr<RankGroups> ranks_;
  std::unique_ptr<CostRecorder> done_ = std::make_unique<CostRecorder>();
  Stream stream_;
  StepPlan plan_;
  Arena arena_;
  TrainingEngine engine_;
};

/// A small model for tests, every dimension different, so that two swapped ones show.
LlamaConfig tiny_llama();
/// The shape of a training step of such a model in FP32 without clipping or decay.
TrainingShape tiny_shape(const LlamaConfig& model, int64_t batch, int64_t sequence);
/// Repeatable tokens below `vocab`.
std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint32_t seed);

}  // namespace ottava::test
