#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/checkpoint/patient_ranks.h"

namespace ottava::checkpoint {

/// Names in the folder of a run's checkpoints: `step-N` is complete (it gets this name last), `step-N.tmp` is
/// being written or was left by a job that died, `step-N.old` has been replaced, `step-N.deleted` is being
/// deleted, `step-N.abandoned` was left behind by a run that went back to an earlier step.
std::string step_folder(const std::string& folder, int64_t step);

struct SavedStep {
  int64_t step = 0;
  std::string path;
};
/// All `step-N` folders, oldest first, without looking into them; where `step-N` is missing, `step-N.old`
/// stands in for it. Empty if the folder does not exist.
std::vector<SavedStep> list_steps(const std::string& folder);

/// True if the step has its manifest, which is written last.
bool is_complete(const SavedStep& saved);

/// What a run whose save has failed can go on from, for messages: "/runs/checkpoint/step-7 is the newest
/// complete checkpoint", "there is no complete checkpoint". Throws nothing.
std::string newest_complete_text(const std::string& folder);

/// Throws FileError: there is no such step in the folder.
[[noreturn]] void refuse_missing_step(const std::string& folder, int64_t step);

/// What `path` stands for: the newest complete step, if it is a folder of steps or a run's folder, which
/// contains one; else the path itself. Newer steps without a manifest are named in a warning. Throws
/// FileError if there is nothing at `path`, if several folders in it have steps, if it is a run's folder
/// without any, and if it is neither that nor a model's.
std::string newest_step_or_itself(const std::string& path);

/// Renames `step-N.tmp` to `step-N` in one step, replacing an older `step-N`, and flushes the folder. What
/// cannot be removed of the older one is left under the name `step-N.deleted` (`-2` and so on), with a
/// warning.
void commit_step(const std::string& folder, int64_t step);

/// Renames the complete checkpoints of later steps than `step` to `step-N.abandoned` (with `-2` and so on
/// appended where that is taken). Nothing lists, deletes or replaces them any more. Returns their new paths.
/// For a run that continues after `step`: two branches in one folder would be rotated and loaded as one.
std::vector<std::string> set_aside_after(const std::string& folder, int64_t step);

struct Rotation {
  int keep_latest_k = 10;  ///< 0: all
  int64_t keep_every = 0;  ///< multiples of it are kept for good and not counted; 0: none
  int64_t after = -1;      ///< those up to this step are kept for now and not counted
};
/// Deletes the oldest complete checkpoints until `keep_latest_k` are left, but never that of `just_saved`.
/// Folders without a manifest are neither counted nor touched. Returns the steps that were deleted.
std::vector<int64_t> rotate_steps(const std::string& folder, Rotation rotation, int64_t just_saved);

/// Removes what jobs that died have left (.tmp, .old, .deleted, .visible-*); a `step-N.old` whose replacement
/// never came gets its name back. To be called only while no save is in flight. Warns about what cannot be
/// removed (NFS keeps files that others have open); throws FileError for a .tmp that cannot even be renamed,
/// since the next save may need its name; an IoError if that may pass.
void remove_leftovers(const std::string& folder);

/// Collective, at start, before the first save: creates the folder and checks that every rank sees a file
/// that rank 0 has just written there. Otherwise throws FileError on all ranks, naming those that do not see
/// it.
void check_shared_folder(const std::string& folder, PatientRanks& group);

}  // namespace ottava::checkpoint
