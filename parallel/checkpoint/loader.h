#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/rank_group.h"

namespace ottava::checkpoint {

struct LoadOptions {
  /// Compares the checksum of every tensor while it is read.
  bool verify = true;
  /// load_newest(): called with the folder of each checkpoint before it is tried, to clear what one may not
  /// hold. A FileError of any rank passes over that one. Null: nothing.
  std::function<void(const std::string& folder)> before_each = nullptr;
  /// load_newest(): checkpoints of earlier steps are as if they were not there.
  int64_t first_step = 0;
};

/// Collective. Fills the shards of all ranks from a checkpoint that any layout saved; stored types are
/// converted to those of the shards. Moments of parameters that another update rule trained are not written,
/// and rank 0 says so. Throws FileError for a checkpoint that is broken, ConfigError for one of another model
/// or without the optimizer state that is asked for, and for ranks that see another one; on all ranks alike.
/// After an error the shards hold anything.
Manifest load_checkpoint(const std::string& step_folder, const TrainedParameters& into, RankGroup& group,
                         const LoadOptions& options = {});

struct LoadedCheckpoint {
  std::string path;
  Manifest manifest;
};
/// Collective. Loads the newest checkpoint that is whole (or that of `load_step`, when it is not -1); broken
/// ones are named in a warning and skipped. Nothing when the folder has none. Throws FileError when there are
/// some and all are broken, or when `load_step` is not there or broken: a run never starts over by itself.
/// Where optimizer state is asked for and the newest checkpoint holds only weights, ConfigError says how to
/// go on: the step it holds would be trained again otherwise. `load_step` passes over it.
std::optional<LoadedCheckpoint> load_newest(const std::string& folder, const TrainedParameters& into,
                                            RankGroup& group, int64_t load_step = -1,
                                            const LoadOptions& options = {});

}  // namespace ottava::checkpoint
