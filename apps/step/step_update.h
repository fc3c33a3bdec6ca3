#pragma once

#include "apps/config/training_shape.h"
#include "apps/step/step_io.h"
#include "core/memory/arena.h"
#include "core/memory/pinned_inputs.h"
#include "models/step_context.h"

namespace ottava {

/// From a rank's gradients to its new weights: the global norm, clipping, whether the step is skipped, AdamW
/// and Muon. All decisions stay on the device until read() is called.
class StepUpdate {
 public:
  /// Takes persistent memory. All arguments must outlive it; `float8` is null without FP8.
  StepUpdate(const TrainingShape& shape, const LlamaParameters& table, Stream& stream, Arena& arena,
             RankGroups& ranks, Fsdp& parameters, Float8State* float8);

  /// Uploads what the host decides for the step.
  void begin(const StepInputs& inputs);
  /// f32 [1]: d(scaled loss) / d(token loss).
  Tensor loss_gradient() const { return scalars_.slice(kLossGradient, kLossGradient + 1); }
  /// To be called once gradients are complete. `loss_sum` f32 [1]: this rank's sum for the step.
  void run(const StepContext& context, const Tensor& loss_sum);
  /// Writes what was decided to `out`. Synchronizes the stream.
  void read(StepOutputs& out);
  /// Continues with the window of a checkpoint; if that has another size or is empty, begins anew.
  void restore(const SpikeWindow& window);
  /// Sets from where t of AdamW's bias corrections counts, for every parameter.
  void restore_begun(const MomentsBegun& begun);

 private:
  std::vector<float> bias_corrections(int64_t step) const;
  void upload(const void* host, const Tensor& device);
  void find_gradient_factor(const StepContext& context, const Tensor& loss_sum);
  void share_norm();
  void skip_spikes(const Tensor& loss_sum);
  void update_by_adamw(const StepContext& context);
  void finish_muon();
  Tensor updated_amax(int parameter);

  const TrainingShape& shape_;
  const LlamaParameters& table_;
  Stream& stream_;
  RankGroups& ranks_;
  Fsdp& parameters_;
  Float8State* float8_;
  MuonUpdate muon_;
  std::vector<int64_t> begun_;  ///< MomentsBegun of each parameter; 0: the run's beginning
  Tensor scalars_, bias_corrections_, step_, sum_of_squares_, skipped_;
  SkipSpike spikes_;     ///< absent tensors where no spikes are skipped
  PinnedInputs pinned_;  ///< on a GPU
};

}  // namespace ottava
