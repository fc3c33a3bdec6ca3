#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/threads/background_work.h"
#include "core/trace/host_spans.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/patient_ranks.h"
#include "parallel/checkpoint/snapshot.h"
#include "parallel/checkpoint/writer.h"

namespace ottava::checkpoint {

struct SaveOptions {
  std::string folder;      ///< of all checkpoints of the run
  std::string layout;      ///< Manifest::layout
  int keep_latest_k = 10;  ///< 0: all; 1 is refused, since a save that fails would leave none
  int64_t keep_every = 0;  ///< multiples of it are kept for good and not counted; 0: none
  int64_t max_file_bytes = 5'000'000'000;
  Snapshot::Memory snapshot = Snapshot::Memory::pageable;  ///< of begin()
  HostSpans* spans = nullptr;  ///< where writing is noted, for traces; outlives the saver
  /// Called on every rank when a checkpoint is complete, with its step; may be empty.
  std::function<void(int64_t step)> on_saved = {};
};

/// One checkpoint. Texts matter only on rank 0.
struct Checkpoint {
  int64_t step = 0;
  TrainedParameters parameters;
  /// For exports: stored type of the weights (f32, bf16, f16) where it differs from that of the shards. Such
  /// a checkpoint does not continue a run bitwise. A weight that f16 cannot represent is a NumericsError.
  std::optional<DType> export_dtype = {};
  std::vector<TextFile> texts;
  int64_t rotate_after = -1;  ///< Rotation::after once it is complete
};

/// Saves checkpoints of one run. The protocol: rank 0 makes `step-N.tmp` with all files at full size; every
/// rank writes what it owns at its offsets and flushes; when all have, checksums are summed over ranks; a
/// thread of rank 0 writes the manifest, flushes, renames the folder to `step-N`, and deletes old
/// checkpoints. Whatever fails or dies before the rename leaves earlier checkpoints as they were.
///
/// Weights that are not finite are not saved: a NumericsError.
///
/// Functions marked collective are called by all ranks in the same order, and throw the same error on all of
/// them.
class CheckpointSaver {
 public:
  /// Throws ConfigError for keep_latest_k 1 or below 0. `group` must outlive this.
  CheckpointSaver(SaveOptions options, PatientRanks& group);
  /// Stops a save in flight, which leaves `step-N.tmp`; but what rank 0's thread has begun it ends.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  /// Says that the run continues after `step`. Checkpoints of later steps, which it did not write, stay until
  /// its first save has been written and are then set aside (set_aside_after()).
  void go_on_after(int64_t step) { set_aside_after_ = step; }

  /// Collective. Saves and returns when the checkpoint is complete, and old ones are deleted. Finishes one in
  /// flight first.
  void save(const Checkpoint& checkpoint);

  /// Collective. Copies what this rank owns into host memory (snapshot.h) and returns; a thread writes the
  /// copy, without communicating; if none can be started, begin() writes it. Finishes a save in flight first.
  void begin(const Checkpoint& checkpoint);
  Snapshot& snapshot() { return snapshot_; }
  bool in_flight() const { return pending_ != nullptr; }
  /// Seconds of a processor that this rank's threads took to write the save that finish() completed, to name
  /// it, and to delete old ones.
  double writing_seconds() const { return writing_seconds_; }
  /// A text for people, of rank 0, where not all ranks go on: that the save in flight cannot be finished,
  /// because of `why`, and which checkpoint is the newest complete one. If all ranks had written, it waits
  /// for the naming: the save is complete, or what went wrong is the reason. Not collective.
  std::string left_text(std::string why) const;
  /// Collective, at step boundaries, and waits for no file: once all ranks have written, has rank 0's thread
  /// name the save in flight; once it has, completes it. Returns true if no save is left in flight.
  bool poll();
  /// Collective. Waits for the save in flight, if there is one, completes it, and waits until old checkpoints
  /// are deleted.
  void finish();

 private:
  struct Pending;
  std::unique_ptr<Pending> prepare(const Checkpoint& checkpoint);
  /// Collective, when a rank's thread has written or is waited for. Begins the naming.
  void agree();
  /// Collective, when the save in flight has its name or could not be given it.
  void complete();
  /// What rank 0's thread does.
  void name_and_rotate(Pending& pending);
  void name(const Pending& pending);
  void rotate(Rotation rotation, int64_t just_saved);
  void set_later_ones_aside();
  /// Runs `work`. If it fails, deletes what was written, since on a full disk the next save needs the space;
  /// but not if ranks have lost each other, since others may still be writing.
  void or_discard(const Pending& pending, const std::function<void()>& work) const;

  SaveOptions options_;
  PatientRanks& group_;
  Snapshot snapshot_;
  std::optional<int64_t> set_aside_after_;  ///< until the first save
  std::unique_ptr<Pending> pending_;
  double writing_seconds_ = 0;
  BackgroundWork naming_{"a checkpoint's name and the removal of old ones"};  ///< of rank 0
};

}  // namespace ottava::checkpoint
