#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/config/training_shape.h"
#include "apps/step/micro_batch_inputs.h"
#include "apps/step/step_graphs.h"
#include "apps/step/step_update.h"
#include "apps/step/token_pass.h"
#include "parallel/pipeline/pipeline_runner.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// Model, parameters and optimizer of one rank, on one device. The same object runs on `meta` to record
/// memory and cost.
class TrainingEngine {
 public:
  /// Takes persistent memory for all state, and the stream's matmul workspace of the given size.
  TrainingEngine(TrainingShape shape, Stream& stream, Arena& arena, RankGroups& ranks,
                 int64_t matmul_workspace_bytes);

  const TrainingShape& shape() const { return shape_; }
  Fsdp& parameters() { return *parameters_; }
  StepContext context();
  Stream& stream() { return stream_; }
  /// Off until StepGraphs::enable.
  StepGraphs& graphs() { return graphs_; }
  /// Null unless on a GPU.
  InputRing* input_ring() { return inputs_->ring(); }

  /// One optimizer step over micro_batches x batch sequences. Blocks until it is done.
  StepOutputs train_step(const HostTokens& tokens, const StepInputs& inputs, StepProfile* profile = nullptr);
  /// This rank's sum of token losses over one validation micro-batch; of a pipeline only its last stage has
  /// one.
  double validate(const HostTokens& tokens);
  /// The token losses of the last validate(); 0 for tokens that do not count, and on all stages but the last.
  std::vector<float> token_losses();
  /// Logits [prompts or more, V] of what follows `tokens`, one per prompt, all at `position` and after those
  /// of earlier calls. All ranks call it.
  std::vector<float> next_logits(std::span<const int32_t> tokens, int64_t position);
  /// Sum of `value` over the ranks of the pipeline; all of them call it.
  double over_stages(double value);
  /// Null without FP8.
  Float8State* float8() { return float8_.get(); }
  /// This rank's running sum of token losses after each micro-batch of the last step, for the log; none if
  /// another stage of its pipeline has them.
  std::vector<float> loss_after_each_micro_batch();
  /// StepUpdate::restore().
  void restore(const SpikeWindow& window) { update_->restore(window); }
  /// StepUpdate::restore_begun().
  void restore_begun(const MomentsBegun& begun) { update_->restore_begun(begun); }

 private:
  /// This rank's part of `batch` whole sequences.
  RankRows rows_of(int64_t batch, int64_t sequence) const {
    return rows_of_rank(batch, sequence, ranks_.context_parallel.size());
  }
  void give_up(const std::exception& error) const noexcept;
  /// Throws CommError if the rank has failed. To be called after synchronizing, before results are used.
  void require_no_failure() const;
  void begin_part();
  void begin_parameters(const StepContext& context);
  void run_micro_batches(const StepContext& context, const HostTokens& tokens);
  void run_pipeline(const StepContext& context, const HostTokens& tokens);
  Allocation run_action(const StepContext& context, const Action& action, const MicroBatch& batch,
                        Allocation in, LlamaSaved& saved);
  PipelineRunner::Boundary boundary(int64_t tokens) const;
  LlamaModel::Loss loss() const;
  void share_losses();
  StepOutputs read_outputs(const RankRows& rows);
  void check_products() const;
  bool holds_layer(std::string_view product) const;

  TrainingShape shape_;
  Stream& stream_;
  Arena& arena_;
  RankGroups& ranks_;
  LlamaParameters table_;
  std::unique_ptr<Fsdp> parameters_;
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<TokenPass> token_pass_;     ///< null without prompts
  std::unique_ptr<PipelineRunner> pipeline_;  ///< null without one
  std::unique_ptr<Float8State> float8_;       ///< null without FP8
  std::unique_ptr<MicroBatchInputs> inputs_;
  std::unique_ptr<StepUpdate> update_;
  Tensor loss_sum_;
  Tensor z_loss_sum_;    ///< absent without z-loss
  Tensor token_losses_;  ///< of validation; absent without
  Tensor loss_sums_;     ///< loss_sum_ after each micro-batch: read only when a step was skipped
  Tensor sequence_losses_, step_sequence_losses_;  ///< of a micro-batch, of the step; absent unless asked for
  Tensor stage_value_;                             ///< f64 [1], of a pipeline
  StepProfile* profile_ = nullptr;
  StepGraphs graphs_;
};

}  // namespace ottava
