#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "parallel/checkpoint/attempts.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/patient_ranks.h"

namespace ottava::checkpoint {

/// Collective. Fills the shards of all ranks from a checkpoint that any layout saved; stored types are
/// converted to those of the shards. Moments of parameters that another update rule trained are left as they
/// are, and rank 0 says so. Throws FileError for a broken checkpoint and for one with weights that are not
/// finite; ConfigError for one of another model, for one without the optimizer state asked for, and if ranks
/// see different checkpoints; the same on all ranks. After an error the contents of the shards are undefined.
Manifest load_checkpoint(const std::string& step_folder, const TrainedParameters& into, PatientRanks& group);

struct LoadOptions {
  /// Called with the folder of each checkpoint before it is tried, to clear state that this checkpoint may
  /// not hold. If it throws FileError on any rank, that checkpoint is passed over. May be null.
  std::function<void(const std::string& folder)> before_each = nullptr;
  /// Checkpoints of earlier steps are ignored.
  int64_t first_step = 0;
  /// Pause before the folder, or a checkpoint, is tried again that a rank could not read (attempts.h).
  double retry_seconds = kPauseSeconds;
  /// Of rank 0: checkpoints that were waited for already, by path, which are tried once. May be null.
  const GivenUp* given_up = nullptr;
};

struct LoadedCheckpoint {
  std::string path;
  Manifest manifest;
};
/// Collective. Loads the newest checkpoint that is whole (or that of `load_step`, unless it is -1); broken
/// ones are named in a warning and skipped, one that the system cannot read after three attempts; so many
/// has the listing of the folder, too. Returns nothing if the folder has no checkpoint. Throws FileError if
/// there are some but all are broken, or if `load_step` is missing or broken: a run never starts over by
/// itself. Throws NoAccess for one that a rank may not read, and ConfigError for one of another version of
/// the format: these may be whole, and are not passed over. If optimizer state is asked for and the newest
/// checkpoint holds only weights, throws ConfigError that says how to go on; going back to an older one would
/// train steps again. Naming a `load_step` passes over it.
std::optional<LoadedCheckpoint> load_newest(const std::string& folder, const TrainedParameters& into,
                                            PatientRanks& group, int64_t load_step = -1,
                                            const LoadOptions& options = {});

}  // namespace ottava::checkpoint
