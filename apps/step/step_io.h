#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/optim/spike.h"
#include "core/stream.h"

namespace ottava {

/// Host tokens of one or several micro-batches, with rows as in RankRows: [count, T]. Document starts only
/// with block-causal attention; positions then, and where ranks share sequences.
struct HostTokens {
  std::span<const int32_t> inputs, targets, document_start, positions;
};

/// What the host decides before a step.
struct StepInputs {
  double learning_rate = 0;
  double loss_scale = 1;
  int64_t optimizer_step = 1;  ///< steps that were not skipped, this one included
  int64_t valid_tokens = 0;    ///< of the whole step, all ranks
  /// The update must wait for this event, until which something else reads masters and moments; null: nothing
  /// does.
  const Event* update_after = nullptr;
};
/// For each parameter, the `optimizer_step` after which its AdamW moments were zero: t of its bias
/// corrections counts from there. Parameters that are not named began with the run.
using MomentsBegun = std::map<std::string, int64_t>;
/// The memory of skip_spike(), on the host.
struct SpikeWindow {
  int64_t known = 0;
  std::vector<float> values;  ///< [2, window]: losses, norms; empty where nothing is skipped
  bool operator==(const SpikeWindow&) const = default;
};
struct StepOutputs {
  /// this rank's sum of token losses over all micro-batches, without z-losses; in a pipeline all ranks have
  /// the last stage's
  double loss_sum = 0;
  double z_loss_sum = 0;  ///< the same for z-losses
  double grad_norm = 0;   ///< global, before clipping
  double loss_scale = 1;  ///< as given
  bool skipped = false;   ///< nothing moved
  Skip why = kNotSkipped;
  std::array<float, 4> spike = {};  ///< SkipSpike::found
  SpikeWindow spikes = {};          ///< after the step
  /// For each of this rank's sequences, the sum of the losses of the tokens that it holds, if TrainingShape
  /// asks for them.
  std::vector<float> sequence_losses = {};
};

}  // namespace ottava
