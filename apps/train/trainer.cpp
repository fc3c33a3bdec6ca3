#include "apps/train/trainer.h"

#include <algorithm>
#include <utility>

#include "apps/config/resolved_layout.h"
#include "apps/data/resumed_data.h"
#include "apps/decide/rehearsal.h"
#include "apps/devices/available_memory.h"
#include "apps/report/startup_report.h"
#include "core/cpu/isa.h"
#include "core/cuda/runtime.h"
#include "core/data/data_file.h"
#include "core/device_stream.h"
#include "core/log.h"
#include "core/ops/matmul/matmul.h"
#include "core/text/counted.h"
#include "core/threads/parallel_for.h"
#include "parallel/checkpoint/attempts.h"
#include "parallel/checkpoint/folder.h"

namespace ottava {
namespace {

LossScale initial_loss_scale(const TrainingConfig& c) {
  std::optional<double> constant = c.constant_loss_scale();
  return constant ? LossScale::constant(*constant) : LossScale::dynamic();
}

/// Where checkpoints are off, a run begins anew beside those that its folder has, and its metrics and events
/// take the place of theirs.
void warn_of_other_run(const Config& c) {
  const std::string folder = c.job.in_dump_folder(c.checkpoint.folder);
  std::vector<checkpoint::SavedStep> steps;
  try {
    steps = checkpoint::list_steps(folder);
  } catch (const FileError&) {  // no folder, or one that may not be listed: this run needs it for nothing
  }
  if (steps.empty()) return;
  log::warning(
      "{} has checkpoints of another run, up to step {}: with checkpoint.enable false this run does not "
      "continue from them, and the metrics and events of the other one, if it has any, are now those with "
      ".previous behind their names; for a run without checkpoints choose another job.dump_folder",
      folder, steps.back().step);
}

}  // namespace

Trainer::Trainer(Experiment experiment, RankGroups& ranks, Device device, const StopSignals* signals)
    : experiment_(std::move(experiment)),
      ranks_(ranks),
      signals_(signals),
      device_(device),
      stream_(device_stream(device)),
      loss_scale_(initial_loss_scale(config_.training)),
      speed_(experiment_, plan_, ranks, device),
      float8_alerts_(config_.float8) {
  open_data();
  RankState& state = ranks.world->state();
  state.calls().set_capacity(config_.comm.trace_buf_size);
  record_failures(state, config_.job.in_dump_folder(config_.comm.save_traces_folder),
                  config_.comm.save_traces_file_prefix);
  ranks.coordinates.units = experiment_.shape.pipeline.units_of(ranks.pp->rank());
  checkpoints_ = std::make_unique<Checkpoints>(
      experiment_, ranks_, stream_, [this](int64_t step) { events_.add("saved", step, ""); }, spans());
  // The first tokens are read while memory is planned and weights are drawn.
  data_->start(begins_with_.data_position);
  for (ValidationSet& set : validation_->sets()) set.data->start(0);
  look_at_data();
  const Float8State::Options& float8 = experiment_.shape.float8.state;
  const GraphUse graphs =
      decide_graphs(config_.training.cuda_graphs, device, *ranks.world,
                    {.has_stages = experiment_.shape.pipeline.is_on(),
                     .amax_history_length = float8.has_history() ? float8.amax_history_length : 0});
  plan(graphs.on);
  if (ranks.is_first()) log_start();
  build(graphs);
  load();
  if (checkpoints_->only_looks()) {
    record_folder_ = config_.job.in_dump_folder("load_only");
    log::info("checkpoint.load_only: metrics and events are written to {}, so that the run's own are kept",
              record_folder_);
  } else if (ranks.is_first() && !config_.checkpoint.enable) {
    warn_of_other_run(config_);
  }
  open_record();
}

void Trainer::open_record() {
  checkpoint::PatientRanks group(*ranks_.control);
  checkpoint::in_three_attempts(
      group, fmt::format("metrics and events could not be opened in {}", record_folder_), [&] {
        group.together([&] {
          reporter_ = std::make_unique<MetricsReporter>(
              MetricsReporter::Options{.config = config_.metrics,
                                       .folder = record_folder_,
                                       .total_steps = config_.training.steps,
                                       .resumed_at = state_.step,
                                       .goes_back = checkpoints_->goes_back(),
                                       .rank = ranks_.world->rank(),
                                       .world_size = ranks_.world->size()});
          if (ranks_.is_first() && config_.metrics.enable_json_lines)
            events_ = RunEvents(record_folder_, state_.step);
        });
      });
}

void Trainer::open_data() {
  begins_with_ = state_to_load(experiment_, ranks_);
  const BatchSource::Options batches = training_batches(experiment_, ranks_);
  data_ = std::make_unique<BatchSource>(open_training_data(experiment_, ranks_), batches);
  place_steps();
  if (config_.training.epochs) {
    if (std::string why = nothing_to_train(config_, ranks_); !why.empty())
      throw NothingToTrain{std::move(why)};
  }
  validation_ = std::make_unique<Validation>(experiment_, ranks_, signals_);
}

// Where in its data the run ends, and where the stages of a mixture begin.
void Trainer::place_steps() {
  TrainingConfig& c = experiment_.config.training;
  data::MixedLoader& data = data_->loader();
  if (!c.mixture.empty()) data.set_mixture(mixture_from(experiment_, data, ranks_, begins_with_));
  if (c.epochs) c.steps = last_step_of_epochs(experiment_, data, ranks_, begins_with_);
}

void Trainer::check_epochs() {
  if (!sources_) return;
  const int64_t steps = std::max<int64_t>(config_.training.steps - begins_with_.step, 0);
  sources_->check_epochs(begins_with_.data_position + steps * experiment_.global_batch);
}

void Trainer::look_at_data() {
  const TrainingConfig& c = config_.training;
  data_watch_ = std::make_unique<DataWatch>(data_->loader(), *ranks_.control);
  data_watch_->look(c.data_check_seconds);
  if (!experiment_.shape.sequence_losses) return;
  sources_ = std::make_unique<SourceReport>(c, data_->loader(), ranks_);
  check_epochs();
}

// Also checks what is impossible, so that it is known before memory is taken.
void Trainer::plan(bool graphs) {
  TrainingShape& shape = experiment_.shape;
  shape.parameters.reductions_cross = reductions_cross(shape.parameters, graphs);
  if (config_.profiling.enable_profiling) {
    traces_ = std::make_unique<StepTraces>(experiment_, ranks_, device_, spans_,
                                           record_spans(shape, device_, ranks_));
  }
  plan_ = record_step(shape, device_, ranks_);
  require_memory(experiment_, plan_.memory, device_, *ranks_.control,
                 saves_asynchronously(config_.checkpoint)
                     ? std::optional(snapshot_bytes(experiment_, ranks_.coordinates))
                     : std::nullopt);
  checkpoints_->reserve_snapshot(device_);
  validation_->require_data();
}

void Trainer::log_start() {
  log_startup_report(experiment_, plan_, device_, ranks_);
  for (const data::MixedLoader::Source& source : data_->loader().sources()) {
    const std::string own =
        name_of_data("training.dataset", config_.training.dataset, config_.training.dataset_path);
    log::info("Data: {}", data_text(source.name.empty() ? own : source.name, *source.loader));
  }
  for (const ValidationSet& set : validation_->sets()) {
    const std::string own = name_of_data("validation.dataset", config_.validation.dataset, set.paths);
    log::info("Validation data: {}",
              data_text(set.name.empty() ? own : set.name, *set.data->loader().sources()[0].loader));
  }
}

void Trainer::build(const GraphUse& graphs) {
  const bool on_gpu = device_.is_gpu();
  if (on_gpu) {
    gpu_bytes_before_ = gpu_bytes_in_use(device_);
    rehearse(experiment_, plan_, stream_, ranks_);
  }
  arena_ = std::make_unique<Arena>(plan_.memory, device_);
  engine_ = std::make_unique<TrainingEngine>(experiment_.shape, stream_, *arena_, ranks_,
                                             plan_.matmul_workspace_bytes);
  log::info("CUDA graphs: {}", graphs.reason);
  if (on_gpu && !experiment_.sm_budget.reason.empty())
    log::info("SM budget: {}", experiment_.sm_budget.reason);
  if (graphs.on) engine_->graphs().enable(*ranks_.world);
}

void Trainer::load() {
  if (loss_scale_.is_dynamic()) state_.loss_scale = loss_scale_.state();
  const TrainingState before = state_;
  // A run that is over goes on for what it has not asked its last weights yet, which takes no moments.
  const bool only_weights =
      begins_with_.step == config_.training.steps && begins_without_moments(config_, ranks_);
  checkpoints_->load(*engine_, state_,
                     only_weights ? Checkpoints::Contents::weights_only : Checkpoints::Contents::all);
  // The last one is broken, so there are steps to make.
  if (only_weights && state_.step < begins_with_.step) {
    state_ = before;
    checkpoints_->load(*engine_, state_);
  }
  go_on_from_loaded();
  state_.sequences_per_step = experiment_.global_batch;
  if (state_.loss_scale) loss_scale_.restore(*state_.loss_scale);
  engine_->restore(state_.spikes);
  engine_->restore_begun(state_.moments_begun);
  note_threads();
  note_what_computes();
  note_schedule();
  if (ranks_.is_first())
    for (const std::string& change : changes_of_files(state_, data_->loader())) log::warning("{}", change);
  check_data_unchanged(state_, data_->loader(), config_.training);
  if (checkpoints_->begins_branch()) leave_out_data(state_, data_->loader(), experiment_);
}

// After a broken checkpoint an earlier one was loaded, and batches may have been others between the two.
void Trainer::go_on_from_loaded() {
  const TrainingState expected = std::exchange(begins_with_, state_);
  if (checkpoints_->begins_branch()) begins_with_.data_position += samples_left_out(experiment_);
  if (begins_with_.step == expected.step && begins_with_.data_position == expected.data_position) return;
  place_steps();
  check_epochs();
}

// Products in f32 and those of bf16 instructions may be divided among threads, and so may their sums.
void Trainer::note_threads() {
  const int64_t now = device_.is_gpu() ? 0 : parallel_threads(), before = std::exchange(state_.threads, now);
  if (now == 0 || before == 0 || now == before || !ranks_.is_first()) return;
  const bool widens_all = experiment_.shape.cpu_products == cpu::ProductChoice{};
  if (config_.training.mixed_precision_param != DType::f32 && widens_all) return;
  log::warning(
      "the run continues with {}, but its checkpoint was made with {}: results may differ in the last bits "
      "(training.threads)",
      counted(now, "thread"), before);
}

// Each instruction set, library and GPU adds in an order of its own.
void Trainer::note_what_computes() {
  const std::string now = device_.is_gpu()
                              ? cuda::device_name(device_.index)
                              : fmt::format("{}, {}", cpu::name_of(cpu::isa()), matmul_backend_description()),
                    before = std::exchange(state_.computes_with, now);
  if (before.empty() || now == before || !ranks_.is_first()) return;
  log::warning(
      "the run continues with {}, but its checkpoint was made with {}: results may differ in the last bits",
      now, before);
}

// Steps that are counted anew may go on a schedule that is not.
void Trainer::note_schedule() const {
  const LrScheduleOptions options = schedule();
  const int64_t horizon = options.schedule.total_steps.value_or(options.steps),
                to_come = options.steps - state_.step,
                behind = to_come - std::max<int64_t>(horizon - state_.schedule_step, 0);
  if (state_.schedule_step <= state_.step || behind <= 0 || decay_steps(options) == 0 || !ranks_.is_first())
    return;
  log::warning(
      "the learning rate goes on at step {} of a schedule of {}, so that for the last {} of {} to come it is "
      "{:g}: add lr_scheduler to checkpoint.exclude_from_loading, or raise lr_scheduler.total_steps",
      state_.schedule_step, horizon, behind, counted(to_come, "step"), learning_rate(horizon));
}

Trainer::~Trainer() = default;

// The default of `dataset` names a text that may not be this one.
std::string Trainer::name_of_data(std::string_view key, const std::string& name,
                                  const std::vector<std::string>& paths) const {
  return config_.provenance.origins.contains(key) ? name : data::names_of_sources(paths);
}

LrScheduleOptions Trainer::schedule() const {
  return {.lr = config_.optimizer.lr, .steps = config_.training.steps, .schedule = config_.lr_scheduler};
}

double Trainer::learning_rate(int64_t step) const { return ottava::learning_rate(schedule(), step); }

}  // namespace ottava
