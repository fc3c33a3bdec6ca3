#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "apps/step/step_io.h"
#include "core/optim/loss_scale.h"

namespace ottava {

/// Name of the file of a checkpoint that holds the state.
inline constexpr std::string_view kStateName = "training_state.json";

/// What a run carries from step to step besides weights and moments. Every checkpoint holds it in
/// `training_state.json`.
struct TrainingState {
  int64_t step = 0;            ///< finished steps, skipped ones included
  int64_t schedule_step = 0;   ///< of the learning rate: `step`, unless the schedule began anew
  int64_t optimizer_step = 0;  ///< steps that moved the weights
  int64_t data_position = 0;   ///< samples consumed, all ranks
  int64_t tokens_seen = 0;
  int64_t skipped_steps = 0, consecutive_skips = 0;
  int64_t skipped_spikes = 0;  ///< not among skipped_steps
  SpikeWindow spikes;
  MomentsBegun moments_begun;                  ///< of parameters whose moments began later than the run
  std::optional<LossScale::State> loss_scale;  ///< of a dynamic one
  uint64_t data_fingerprint = 0;               ///< of the data that data_position counts in; 0: none read yet
  /// data::MixedLoader::versions() of the samples consumed, as rank 0 sees the files
  std::map<std::string, std::string> data_versions;
  std::string mixture;             ///< data::MixedLoader::order_text() of the samples consumed
  int64_t sequences_per_step = 0;  ///< all ranks; 0: not known
  int64_t threads = 0;             ///< of rank 0 on a CPU; 0: not known, or a GPU
  std::string computes_with;  ///< what the last bits of rank 0's sums depend on besides; empty: not known
  /// branch_of() the configuration that last went back to an earlier step, or could have; empty: none did
  std::string branch;
  bool operator==(const TrainingState&) const = default;
};

/// The text of training_state.json.
std::string to_json(const TrainingState& state);
/// Inverse of to_json(). Throws FileError naming `where` for anything that to_json() does not write.
TrainingState parse_training_state(std::string_view text, std::string_view where);

}  // namespace ottava
