#pragma once

#include <cstdint>
#include <vector>

#include "core/cpu/bf16_products.h"
#include "core/optim/adamw.h"
#include "core/optim/spike.h"
#include "models/llama/llama_model.h"
#include "parallel/pipeline/pipeline_layout.h"
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
  /// Sequences of one micro-batch on one data rank, and their length; context parallel ranks share them.
  int64_t batch = 1, sequence = 2048;
  int64_t micro_batches = 1;
  PipelineLayout pipeline;       ///< off: every rank holds the whole model
  int64_t validation_batch = 0;  ///< 0: never validates
  int64_t validation_sequence = 0;
  int64_t prompts = 0;  ///< that TokenPass continues at the same time, up to sample_length tokens each
  int64_t sample_length = 0;
  cpu::ProductChoice cpu_products = cpu::usual_products();
  bool block_causal = false;     ///< attention stays within documents; positions restart
  bool sequence_losses = false;  ///< StepOutputs has each sequence's loss
  AdamwHyper adamw;
  MuonOptions muon;
  SpikeRule spikes;
  float max_norm = 1;
  std::vector<ParameterTraining> groups;  ///< per parameter of the table; empty: the defaults
  fp8::Policy float8_policy;              ///< empty without FP8
  LlamaFloat8 float8;  ///< what that policy means for the model; parameters.float8 has the weights' part
};

/// The table of the shape's model, with the update rules of its groups.
LlamaParameters parameter_table(const TrainingShape& shape);

/// The rows of a micro-batch on one rank: sequences or, with context parallel, the chunks that it holds.
struct RankRows {
  int64_t batch = 1, sequence = 0;
  int64_t tokens() const { return batch * sequence; }
};
/// `ranks`: how many share each sequence; each then holds two chunks of it
/// (parallel/sharding/context_parallel.h).
inline RankRows rows_of_rank(int64_t batch, int64_t sequence, int ranks) {
  return ranks == 1 ? RankRows{batch, sequence} : RankRows{2 * batch, sequence / (2 * ranks)};
}

}  // namespace ottava
