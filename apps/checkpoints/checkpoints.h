#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/checkpoints/model_files.h"
#include "apps/checkpoints/steps_to_load.h"
#include "apps/config/experiment.h"
#include "apps/step/training_engine.h"
#include "apps/step/training_state.h"
#include "core/io/system_failure.h"
#include "parallel/checkpoint/loader.h"
#include "parallel/checkpoint/patient_ranks.h"
#include "parallel/checkpoint/saver.h"

namespace ottava {

/// When a run saves and what it starts from: section `checkpoint`. Every call is made by all ranks.
class Checkpoints {
 public:
  /// If the run saves, checks that every rank sees the folder, and reads the files that go beside the
  /// weights. Throws FileError, ConfigError. `on_saved` is called on every rank when a checkpoint is
  /// complete, with its step. `spans` (may be null) records writing, for traces.
  Checkpoints(const Experiment& experiment, RankGroups& ranks, Stream& stream,
              std::function<void(int64_t step)> on_saved, HostSpans* spans = nullptr);
  ~Checkpoints();

  bool is_enabled() const { return experiment_.config.checkpoint.enable; }
  /// False under checkpoint.load_only too.
  bool saves() const { return saver_ != nullptr; }
  /// Whether the run starts from a checkpoint of its folder but will save none (checkpoint.load_only), so
  /// that the record there is not its own.
  bool only_looks() const { return only_looks_; }
  enum class Contents : uint8_t {
    all,
    weights_only  ///< no moments are read, for a run that makes no step; the checkpoint may have none
  };
  /// Loads weights, moments and state from the newest whole checkpoint, else what initial_load_path gives.
  /// What neither gives, or what exclude_from_loading names, begins as in a new run; `state` then stays as
  /// given. For a branch that continues everything is loaded, since exclude_from_loading was followed when it
  /// began.
  void load(TrainingEngine& engine, TrainingState& state, Contents what = Contents::all);

  /// Whether a checkpoint of the run's own folder was loaded.
  bool resumes() const { return resumes_; }
  /// Whether the folder has checkpoints of later steps than the one that was loaded.
  bool goes_back() const { return goes_back_; }

  /// Whether the run begins the branch that branch_of() names; false if it continues that branch.
  bool begins_branch() const { return !branch_begin_ && !branch_of(config_).empty(); }

  /// Also if the save before is to be repeated.
  bool is_due(int64_t step, bool is_last) const;
  /// While steps are skipped because they are not finite, the weights may be broken, so no checkpoint from
  /// before the first of them is deleted. If the last step cannot be exported in checkpoint.export_dtype,
  /// saves it as a checkpoint like the others and then throws what prevented that. Files that the system
  /// cannot write (IoError) are written once more, 10 s later, since a network file system may be away for a
  /// moment: by the next save, if these are of one in the background. Where there is no room, or writing is
  /// not permitted (Mendable), or the folder has gone meanwhile, a save that is not the last is given up, and
  /// the run goes on to the next. The second failure in a row is thrown, and names the first; but the last
  /// save is made once more, whatever failed before, after an IoError or where the folder has gone, which
  /// makes it anew. Returns false if it was given up.
  bool save(TrainingEngine& engine, const TrainingState& state, bool is_last);
  /// Takes the memory of asynchronous saves now; otherwise the first of them does.
  void reserve_snapshot(Device device);
  /// If a save in flight copies masters and moments while the next step runs, the end of these copies, before
  /// which the step may not update them; else null.
  const Event* end_of_copies() const;
  /// CheckpointSaver::poll(), so that an asynchronous save becomes complete beside the steps.
  void poll();
  /// Waits for an asynchronous save and completes it.
  void finish();
  /// The same. Returns false if it failed, of which save() says what follows; before the last save a second
  /// failure in a row ends nothing.
  bool finish_or_repeat(bool before_last = false);
  /// True while an asynchronous save is not completed.
  bool in_flight() const { return saver_ && saver_->in_flight(); }
  /// CheckpointSaver::writing_seconds().
  double writing_seconds() const { return saver_->writing_seconds(); }
  /// advice_to_go_back() for the run's checkpoints. All ranks call it and get the same text.
  std::string ways_back(int64_t step);
  /// CheckpointSaver::left_text() of the save in flight.
  std::string left_text(std::string why) const { return saver_->left_text(std::move(why)); }

 private:
  bool excludes(std::string_view what) const;
  void go_on_from(const checkpoint::LoadedCheckpoint& loaded, Contents what, TrainingEngine& engine,
                  TrainingState& state);
  void load_initial(const std::string& path, TrainingEngine& engine, TrainingState& state);
  void take_state(const checkpoint::LoadedCheckpoint& from, const std::vector<ParameterSpec>& specs,
                  TrainingState& state);
  void take_history(const std::string& folder, TrainingEngine& engine);
  std::optional<std::string> text_of(const std::string& path);
  /// Path of the weights to begin with, unless they are random. All ranks call it.
  std::optional<std::string> initial_path();
  void log_changes(const std::string& path) const;
  void warn_of_other_batches(int64_t sequences_before, int64_t ranks_before) const;
  void look_at_later_ones(int64_t step);
  checkpoint::Checkpoint contents(TrainingEngine& engine, const TrainingState& state, bool model_only) const;
  void save_once(TrainingEngine& engine, const TrainingState& state, bool is_last);
  void take_failure(const FileError& error, std::string_view what_follows);
  void warn_of_failure(const FileError& error, std::string_view what_follows);
  void take_failure(const IoError& error);
  void take_failure(const Mendable& error);
  template <class Work>
  auto naming_first_failure(const Work& work) const;

  const Experiment& experiment_;
  const CheckpointConfig& config_;
  Stream& stream_;
  ShardCoordinates coordinates_;
  checkpoint::PatientRanks group_;
  const GivenUp& unreadable_;
  std::string folder_;
  bool resumes_ = false, only_looks_ = false, goes_back_ = false;
  std::optional<int64_t> branch_begin_;  ///< of a branch that goes on: its first step, as load_newest's
  std::unique_ptr<checkpoint::CheckpointSaver> saver_;
  ModelFiles files_;           ///< rank 0's, where it saves
  std::string first_failure_;  ///< of the saves since one succeeded
  bool is_repeated_ = false;   ///< the last save failed and is due again
};

/// The shards of an engine as checkpoints see them: weights, and moments `with_optimizer`.
checkpoint::TrainedParameters trained_parameters(Fsdp& parameters, Stream& stream,
                                                 bool with_optimizer = false);

}  // namespace ottava
