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

/// Host tokens of one micro-batch or of several, in the order of RankRows: [count, T]; documents only when
/// block-causal, positions then and where ranks share sequences.
struct HostTokens {
  std::span<const int32_t> inputs, targets, document_start, positions;
};

/// What the host decides before a step.
struct StepInputs {
  double learning_rate = 0;
  double loss_scale = 1;
  int64_t optimizer_step = 1;  ///< steps that were not skipped, this one included
  int64_t valid_tokens = 0;    ///< of the whole step, all ranks
  /// Something reads masters and moments until then: the update comes after it. Null: nothing does.
  const Event* update_after = nullptr;
};
/// By parameter the `optimizer_step` after which its AdamW moments were zero: t of its bias corrections
/// counts from there. Those that are not named began with the run.
using MomentsBegun = std::map<std::string, int64_t>;
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

}  // namespace ottava
