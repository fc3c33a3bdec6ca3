#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/checkpoint/rank_group.h"

namespace ottava::checkpoint {

/// Names in the folder of a run's checkpoints: `step-N` is complete (it is renamed to that last),
/// `step-N.tmp` is being written or was left by a job that died, `step-N.old` was replaced, `step-N.deleted`
/// is on its way out, `step-N.abandoned` was left by a run that went back behind it.
std::string step_folder(const std::string& folder, int64_t step);

struct SavedStep {
  int64_t step = 0;
  std::string path;
};
/// All `step-N` folders, oldest first, without looking into them; a `step-N.old` stands in for a `step-N`
/// that is not there. Empty when the folder does not exist.
std::vector<SavedStep> list_steps(const std::string& folder);

/// What `path` stands for: the newest step of a folder of steps; of a run's folder, which has such a folder
/// in it; else itself. Throws FileError when there is nothing at `path`, and where several folders in it have
/// steps.
std::string newest_step_or_itself(const std::string& path);

/// Puts `step-N.tmp` in the place of `step-N` in one step and flushes the folder; an older `step-N` is
/// replaced. What cannot be removed of that is left under the name `step-N.deleted` (`-2` and so on), and a
/// warning tells.
void commit_step(const std::string& folder, int64_t step);

/// Gives the complete checkpoints of later steps than `step` the name `step-N.abandoned` (`-2` and so on
/// behind it where that is taken): nothing lists, deletes or replaces them any more. Returns their new paths.
/// For a run that goes on after `step`: two branches in one folder would be rotated as one, and loaded as
/// one.
std::vector<std::string> set_aside_after(const std::string& folder, int64_t step);

struct Rotation {
  int keep_latest_k = 10;  ///< 0: all
  int64_t keep_every = 0;  ///< multiples of it are kept for good and not counted; 0: none
};
/// Deletes the oldest complete checkpoints until `keep_latest_k` are left, never that of `just_saved`.
/// Folders without a manifest are neither counted nor touched. Returns the steps that went.
std::vector<int64_t> rotate_steps(const std::string& folder, Rotation rotation, int64_t just_saved);

/// Removes what jobs that died left (.tmp, .old, .deleted); a `step-N.old` whose replacement never came is
/// given its name back. Only while no save is in flight. Of what cannot be removed (NFS keeps files that
/// others have open) a warning tells; throws FileError for a .tmp that cannot even be renamed, since the next
/// save may need its name.
void remove_leftovers(const std::string& folder);

/// Collective, at start, before the first save: creates the folder and checks that every rank sees a file
/// that rank 0 has just written there. Throws FileError on all ranks naming those that do not.
void check_shared_folder(const std::string& folder, RankGroup& group);

}  // namespace ottava::checkpoint
