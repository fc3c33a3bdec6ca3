#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/train/step_graphs.h"
#include "core/cpu/bf16_products.h"
#include "core/memory/input_ring.h"
#include "core/optim/adamw.h"
#include "core/optim/spike.h"
#include "models/llama/llama_model.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "parallel/pipeline/pipeline_runner.h"
#include "parallel/ranks/rank_groups.h"
#include "parallel/sharding/muon_update.h"

namespace ottava {

/// How the optimizer treats one parameter (optimizer.param_groups).
struct ParameterTraining {
  float weight_decay = 0;
  float lr_factor = 1;
  UpdateRule rule = UpdateRule::adamw;
};

/// Everything that decides what a step computes, resolved from the configuration.
struct TrainingShape {
  LlamaConfig model;
  LlamaModelOptions model_options;
  FsdpOptions parameters;
  /// Of one micro-batch on one data rank; ranks of context parallel share its sequences.
  int64_t batch = 1, sequence = 2048;
  int64_t micro_batches = 1;
  PipelineLayout pipeline;       ///< off: every rank holds the whole model
  int64_t validation_batch = 0;  ///< 0: never validates
  int64_t validation_sequence = 0;
  cpu::ProductChoice cpu_products = cpu::usual_products();
  bool block_causal = false;     ///< attention stays within documents; positions restart
  bool sequence_losses = false;  ///< StepOutputs has each sequence's loss
  AdamwHyper adamw;
  MuonOptions muon;
  SpikeRule spikes;
  float max_norm = 1;
  std::vector<ParameterTraining> groups;  ///< per parameter of the table; empty: the defaults
  fp8::Policy float8_policy;              ///< empty without FP8
  LlamaFloat8 float8;  ///< what it means for the model; parameters.float8 has the weights' part
};

/// The table of the shape's model, with the update rules of its groups.
LlamaParameters parameter_table(const TrainingShape& shape);

/// A micro-batch as one rank computes it: sequences, or as many chunks of them as lie here (context
/// parallel).
struct RankRows {
  int64_t batch = 1, sequence = 0;
  int64_t tokens() const { return batch * sequence; }
};
/// `ranks` that share each sequence hold two chunks of it each (parallel/sharding/context_parallel.h).
inline RankRows rows_of_rank(int64_t batch, int64_t sequence, int ranks) {
  return ranks == 1 ? RankRows{batch, sequence} : RankRows{2 * batch, sequence / (2 * ranks)};
}

/// Host tokens of one micro-batch or of several, in the order of RankRows: [count, T]; documents only when
/// block-causal, positions then and where ranks share sequences.
struct HostTokens {
  std::span<const int32_t> inputs, targets, document_start, positions;
};

/// What the host decides before a step.
struct StepInputs {
  double learning_rate = 0;
  double loss_scale = 1;
  int64_t optimizer_step = 1;  ///< t of the bias corrections: steps that were not skipped, this one included
  int64_t valid_tokens = 0;    ///< of the whole step, all ranks
  /// Something reads masters and moments until then: the update comes after it. Null: nothing does.
  const Event* update_after = nullptr;
};
/// What skip_spike() remembers, on the host.
struct SpikeWindow {
  int64_t known = 0;
  std::vector<float> values;  ///< [2, window]: losses, norms; empty where nothing is skipped
  bool operator==(const SpikeWindow&) const = default;
};
struct StepOutputs {
  /// this rank's sum of token losses, all micro-batches, without z-losses; on all ranks of a pipeline what
  /// its last stage has
  double loss_sum = 0;
  double z_loss_sum = 0;     ///< and of z-losses
  double grad_norm = 0;      ///< global, before clipping
  int64_t valid_tokens = 0;  ///< as given
  bool skipped = false;      ///< nothing moved
  Skip why = kNotSkipped;
  std::array<float, 4> spike = {};  ///< SkipSpike::found
  SpikeWindow spikes = {};          ///< after the step
  /// Sum of the token losses of each of this rank's sequences (of what it holds of each), if TrainingShape
  /// asks for them.
  std::vector<float> sequence_losses = {};
};

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
  /// Off until StepGraphs::enable.
  StepGraphs& graphs() { return graphs_; }
  /// Null but for a GPU.
  InputRing* input_ring() { return ring_.get(); }

  /// One optimizer step over micro_batches x batch sequences. Blocks until it is done.
  StepOutputs train_step(const HostTokens& tokens, const StepInputs& inputs, StepProfile* profile = nullptr);
  /// This rank's sum of token losses over one validation micro-batch; of a pipeline only its last stage has
  /// one.
  double validate(const HostTokens& tokens);
  /// Losses of the tokens of the last validate(), 0 where they do not count and on other stages than the
  /// last.
  std::vector<float> token_losses();
  /// Sum over the ranks of the pipeline; all of them call it.
  double over_stages(double value);
  /// Which gradients of the last step are not finite on this rank, for the log: "3 of 20:
  /// layers.0.attention.wqkv, ..."; empty when none is. Copies every gradient to the host.
  std::string non_finite_gradients();
  /// Which FP8 operands of the last step were not finite on this rank: "x of layers.0.attention.wqkv, ...";
  /// empty when none. A weight's amax is that of all ranks: "(in its own shard)" where this one holds what is
  /// not finite.
  std::string non_finite_operands();
  /// Null without FP8.
  Float8State* float8() { return float8_.get(); }
  /// This rank's sum of token losses of the last step after each of its micro-batches, for the log.
  std::vector<float> loss_after_each_micro_batch();
  /// Goes on with the window of a checkpoint; one of another size, or none, begins anew.
  void restore(const SpikeWindow& window);

 private:
  void upload(const void* host, const Tensor& device);
  /// On a GPU, starts the upload of a micro-batch's share of the host's tokens.
  void send(const HostTokens& tokens, int64_t index, int64_t count);
  /// The micro-batch at its place.
  MicroBatch receive(const HostTokens& tokens, int64_t index, const RankRows& rows);
  /// Of `batch` whole sequences, what is this rank's.
  RankRows rows_of(int64_t batch, int64_t sequence) const {
    return rows_of_rank(batch, sequence, ranks_.context_parallel.size());
  }
  void begin_part();
  void begin_parameters(const StepContext& context);
  void run_micro_batches(const StepContext& context, const HostTokens& tokens);
  void run_pipeline(const StepContext& context, const HostTokens& tokens);
  Allocation run_action(const StepContext& context, const Action& action, const MicroBatch& batch,
                        Allocation in, LlamaSaved& saved);
  PipelineRunner::Boundary boundary(int64_t tokens) const;
  LlamaModel::Loss loss() const;
  void share_losses();
  void update(const StepContext& context);
  void find_gradient_factor(const StepContext& context);
  void skip_spikes();
  void update_by_adamw(const StepContext& context);
  Tensor updated_amax(size_t parameter);
  void share_norm();
  void check_products() const;
  bool holds_layer(std::string_view product) const;
  bool holds_non_finite(size_t entry);

  TrainingShape shape_;
  Stream& stream_;
  Arena& arena_;
  RankGroups& ranks_;
  LlamaParameters table_;
  std::unique_ptr<Fsdp> parameters_;
  std::unique_ptr<MuonUpdate> muon_;
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<PipelineRunner> pipeline_;  ///< null without one
  std::unique_ptr<Float8State> float8_;       ///< null without FP8
  std::vector<Tensor>
      inputs_;  ///< tokens, targets and, block-causal, document starts and positions: i32, where every
                ///< micro-batch is computed from, so that a graph of one serves another; of a pipeline, in
                ///< which several are on their way, all those of a step
  std::unique_ptr<InputRing> ring_;  ///< for a GPU
  Tensor scalars_, step_, loss_sum_, sum_of_squares_, skipped_;
  Tensor z_loss_sum_;    ///< absent without z-loss
  SkipSpike spikes_;     ///< absent tensors where no spikes are skipped
  Tensor token_losses_;  ///< of validation; absent without
  Tensor loss_sums_;     ///< loss_sum_ after each micro-batch: read only when a step was skipped
  Tensor sequence_losses_, step_sequence_losses_;  ///< of a micro-batch, of the step; absent unless asked for
  PinnedInputs pinned_scalars_;                    ///< on a GPU
  StepProfile* profile_ = nullptr;
  StepGraphs graphs_;
};

}  // namespace ottava
