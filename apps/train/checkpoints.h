#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/train/model_files.h"
#include "apps/train/steps_to_load.h"
#include "apps/train/training_engine.h"
#include "apps/train/training_state.h"
#include "parallel/checkpoint/loader.h"
#include "parallel/checkpoint/rank_group.h"
#include "parallel/checkpoint/saver.h"

namespace ottava {

/// When a run saves and what it starts from: section `checkpoint`. Every call is made by all ranks.
class Checkpoints {
 public:
  /// Checks the folder (every rank must see it) when the run saves, and reads the files that lie beside the
  /// weights. Throws FileError, ConfigError.
  /// `spans` (null: none) is where writing is noted, for traces.
  Checkpoints(const Experiment& experiment, RankGroups& ranks, Stream& stream, HostSpans* spans = nullptr);
  ~Checkpoints();

  bool is_enabled() const { return experiment_.config.checkpoint.enable; }
  /// False under checkpoint.load_only, too.
  bool saves() const { return saver_ != nullptr; }
  /// Whether the run goes on from a checkpoint of its folder and will save none (checkpoint.load_only): the
  /// record there is not its own.
  bool only_looks() const { return only_looks_; }
  /// Where reading of data will begin, for reading ahead: the newest checkpoint's position, or 0.
  int64_t data_position_to_load() const;
  /// Weights, moments and state of the newest whole checkpoint, else what initial_load_path gives; what
  /// neither gives, or exclude_from_loading names, begins as in a new run, `state` as it is given. Of a
  /// branch that goes on everything is loaded: exclude_from_loading was followed when it began.
  void load(TrainingEngine& engine, TrainingState& state);

  /// Whether the run begins branch_of() its configuration: false where it goes on with it.
  bool begins_branch() const { return !branch_begin_ && !branch_of(config_).empty(); }

  bool is_due(int64_t step, bool is_last) const;
  void save(TrainingEngine& engine, const TrainingState& state, bool is_last);
  /// Takes the memory of asynchronous saves (snapshot_bytes()), which the first one takes otherwise.
  void reserve_snapshot(Device device);
  /// Where a save in flight copies masters and moments while the next step runs: the end of that, before
  /// which the step may not update them. Else null.
  const Event* end_of_copies() const;
  /// Completes an asynchronous save whose writing is done; never waits.
  void poll();
  /// Waits for it.
  void finish();
  bool in_flight() const { return saver_ && saver_->in_flight(); }
  /// CheckpointSaver::unfinished_text() of the one in flight.
  std::string unfinished_text(std::string_view why) const { return saver_->unfinished_text(why); }

 private:
  bool excludes(std::string_view what) const;
  void load_initial(const std::string& path, TrainingEngine& engine, TrainingState& state);
  void take_state(const checkpoint::LoadedCheckpoint& from, const std::vector<ParameterSpec>& specs,
                  TrainingState& state) const;
  void take_history(const std::string& folder, TrainingEngine& engine) const;
  /// Weights to begin with, if not random ones. All ranks call it.
  std::optional<std::string> initial_path();
  /// What checkpoint.initial_load_path stands for: of a run's folder, its newest checkpoint.
  std::string given_path() const;
  void require_same_model(const std::string& path) const;
  void log_changes(const std::string& path) const;
  void log_later_ones(int64_t step) const;
  checkpoint::Checkpoint contents(TrainingEngine& engine, const TrainingState& state, bool model_only) const;

  const Experiment& experiment_;
  const CheckpointConfig& config_;
  Stream& stream_;
  ShardCoordinates coordinates_;
  checkpoint::RankGroup group_;
  std::string folder_;
  bool only_looks_ = false;
  std::optional<int64_t> branch_begin_;  ///< of a branch that goes on: its first step, as load_newest's
  std::unique_ptr<checkpoint::CheckpointSaver> saver_;
  ModelFiles files_;  ///< rank 0's, where it saves
};

/// The shards of an engine as checkpoints see them: weights, and moments `with_optimizer`.
checkpoint::TrainedParameters trained_parameters(Fsdp& parameters, Stream& stream,
                                                 bool with_optimizer = false);

}  // namespace ottava
