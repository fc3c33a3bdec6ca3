#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/checkpoints/checkpoints.h"
#include "apps/config/experiment.h"
#include "apps/data/batch_source.h"
#include "apps/data/data_watch.h"
#include "apps/report/float8_report.h"
#include "apps/report/metrics_reporter.h"
#include "apps/report/run_events.h"
#include "apps/step/training_state.h"
#include "apps/train/run_speed.h"
#include "apps/train/source_report.h"
#include "apps/train/step_traces.h"
#include "apps/train/stop_signals.h"
#include "apps/train/validation.h"
#include "core/optim/loss_scale.h"
#include "core/optim/lr_schedule.h"

namespace ottava {

/// Trains one experiment on one rank, from its newest checkpoint or from the beginning, up to training.steps.
class Trainer {
 public:
  /// Plans, allocates, loads. Everything that can be wrong with the configuration and a checkpoint is found
  /// here, before the first step; the data is looked through for training.data_check_seconds.
  Trainer(Experiment experiment, RankGroups& ranks, Device device, const StopSignals* signals);
  ~Trainer();

  enum class End { completed, stopped };
  /// A stop asked for before the first step ends the run at once; one asked for later ends it after the
  /// current step, with a checkpoint. A validation is broken off; the next run begins with it. The first rank
  /// calls `before_saves` before each save.
  End run(std::function<void()> before_saves = [] {});

  const TrainingState& state() const { return state_; }
  TrainingEngine& engine() { return *engine_; }
  const StepPlan& plan() const { return plan_; }
  Experiment& experiment() { return experiment_; }
  BatchSource& data() { return *data_; }
  /// Where metrics, events and decisions go: the dump folder, or load_only/ in it if the run in it must not
  /// be changed (Checkpoints::only_looks()).
  const std::string& record_folder() const { return record_folder_; }
  Checkpoints& checkpoints() { return *checkpoints_; }
  Stream& stream() { return stream_; }
  /// One step without logging or saving (benchmarks). Throws DataError on all ranks, before anything moves,
  /// if one of them cannot read its tokens.
  StepOutputs step(StepProfile* profile);

 private:
  // In the constructor's order.
  void open_data();
  void open_record();
  void place_steps();
  void look_at_data();
  void check_epochs();
  void plan(bool graphs);
  void log_start();
  void build(const GraphUse& graphs);
  void load();
  void go_on_from_loaded();
  void note_threads();
  void note_what_computes();
  void note_schedule() const;

  End train();
  bool validate(const std::vector<std::string>& results);
  std::vector<std::string> results_left_out();
  End end_early();
  StepOutputs timed_step();
  const HostTokens* read_tokens();
  int64_t agree_on_step(bool has_tokens);
  void count_step(const StepOutputs& out);
  void finish_save(bool all_are_here);
  LrScheduleOptions schedule() const;
  double learning_rate(int64_t step) const;
  void log_step(const StepOutputs& out);
  void save(bool is_last);
  std::string_view save_early();
  void show_first_sample();
  void log_first_sample();
  void check_health(const StepOutputs& out);
  void warn_of_zero_gradient(const StepOutputs& out);
  int64_t first_skipped_sample() const;
  void warn_of_skips_at_end();
  std::string name_of_data(std::string_view key, const std::string& name,
                           const std::vector<std::string>& paths) const;
  void report_gpu_memory() const;
  /// For HostSpans::Scope.
  HostSpans* spans() { return experiment_.config.profiling.enable_profiling ? &spans_ : nullptr; }

  Experiment experiment_;
  const Config& config_ = experiment_.config;
  RankGroups& ranks_;
  const StopSignals* signals_;
  std::function<void()> before_saves_;  ///< run()'s
  Device device_;
  Stream stream_;
  LossScale loss_scale_;
  StepPlan plan_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<TrainingEngine> engine_;
  std::unique_ptr<BatchSource> data_;
  std::unique_ptr<Validation> validation_;
  std::unique_ptr<DataWatch> data_watch_;
  HostSpans spans_;                        ///< filled where steps are traced
  std::unique_ptr<SourceReport> sources_;  ///< of a mixture
  std::unique_ptr<Checkpoints> checkpoints_;
  std::unique_ptr<StepTraces> traces_;  ///< null: none
  std::string record_folder_ = config_.job.dump_folder;
  std::unique_ptr<MetricsReporter> reporter_;
  RunEvents events_;                   ///< rank 0's
  TrainingState state_, begins_with_;  ///< begins_with_: state_to_load(), then what was loaded
  RunSpeed speed_;
  Float8Alerts float8_alerts_;
  std::string vanishing_;  ///< describe_vanishing() of the last step that was skipped; empty: not for that
  bool stop_asked_ = false, data_is_bad_ = false, has_zero_gradient_ = false;
  int64_t gpu_bytes_before_ = 0, steps_here_ = 0, saved_at_ = 0;
};

}  // namespace ottava
