#include <fmt/ranges.h>

#include <utility>

#include "apps/checkpoints/due_results.h"
#include "apps/data/chat_data.h"
#include "apps/data/resumed_data.h"
#include "apps/devices/available_memory.h"
#include "apps/step/global_loss.h"
#include "apps/train/trainer.h"
#include "core/error.h"
#include "core/held_memory.h"
#include "core/log.h"
#include "core/stopwatch.h"
#include "core/text/split.h"
#include "parallel/checkpoint/patient_ranks.h"
#include "parallel/comm/agree.h"

// What Trainer does step after step.

namespace ottava {
namespace {

// Where this rank has not logged why the run stops.
void log_stop_of_others(const StopSignals* signals) {
  if (!is_signalled(signals)) log::info("Another rank was asked to stop");
}

/// What ranks tell each other before a step, in one sum over all of them.
struct StepExchange {
  double valid_tokens = 0;                            ///< of the rank; summed: of the step
  double stops = 0, has_bad_data = 0, is_unread = 0;  ///< 1 or 0; summed: how many ranks say so
  Tensor values() { return view_of(&valid_tokens, {sizeof *this / sizeof(double)}); }
};

/// Some rank cannot read its tokens of the next step, which all ranks have agreed not to begin.
struct Unread : DataError {
  using DataError::DataError;
};

}  // namespace

// Null: what is wrong has been said to data_watch_.
const HostTokens* Trainer::read_tokens() {
  const HostSpans::Scope reading(spans(), HostSpans::Track::data,
                                 fmt::format("read step {}", state_.step + 1));
  try {
    return &data_->read(state_.data_position);
  } catch (const Error& error) {
    data_watch_->object(error.what());
    return nullptr;
  }
}

// The one exchange before a step. Returns the tokens that count, of all ranks.
int64_t Trainer::agree_on_step(bool has_tokens) {
  StepExchange shared{.valid_tokens = static_cast<double>(data_->valid_tokens()),
                      .stops = is_signalled(signals_) ? 1.0 : 0.0,
                      .has_bad_data = data_watch_->poll() ? 1.0 : 0.0,
                      .is_unread = has_tokens ? 0.0 : 1.0};
  if (ranks_.world->size() > 1) {
    const HostSpans::Scope sharing(spans(), HostSpans::Track::host, "tokens and stop");
    // Ranks of a pipeline and of tensor parallel read the same tokens: only the first of each group counts
    // them.
    if (ranks_.tensor_parallel.rank() != 0 || ranks_.pp->rank() != 0) shared.valid_tokens = 0;
    reduce_on_host(*ranks_.control, shared.values(), "tokens and stop");
  }
  stop_asked_ = shared.stops > 0;
  data_is_bad_ = shared.has_bad_data > 0;
  if (shared.is_unread > 0)
    throw Unread(has_tokens ? "[data] another rank cannot read its tokens" : data_watch_->problem());
  return static_cast<int64_t>(shared.valid_tokens);
}

StepOutputs Trainer::step(StepProfile* profile) {
  const HostTokens* tokens = read_tokens();
  const int64_t valid_tokens = agree_on_step(tokens != nullptr);
  const StepInputs inputs{.learning_rate = learning_rate(state_.schedule_step),
                          .loss_scale = loss_scale_.value(),
                          .optimizer_step = state_.optimizer_step + 1,
                          .valid_tokens = valid_tokens,
                          .update_after = checkpoints_->end_of_copies()};
  const HostSpans::Scope training(spans(), HostSpans::Track::host, "train step");
  StepOutputs out = engine_->train_step(*tokens, inputs, profile);
  out.loss_scale = inputs.loss_scale;
  if (sources_) sources_->add(*data_, out.sequence_losses);
  count_step(out);
  return out;
}

void Trainer::count_step(const StepOutputs& out) {
  state_.step += 1;
  state_.schedule_step += 1;
  state_.data_position += experiment_.global_batch;
  state_.tokens_seen += experiment_.tokens_per_step();
  state_.spikes = out.spikes;
  const bool is_finite = out.why != kNotFinite;
  state_.optimizer_step += !out.skipped;
  state_.skipped_spikes += out.skipped && is_finite;
  state_.skipped_steps += !is_finite;
  state_.consecutive_skips = is_finite ? 0 : state_.consecutive_skips + 1;
  loss_scale_.update(!is_finite);
  if (loss_scale_.is_dynamic()) state_.loss_scale = loss_scale_.state();
}

// A save in flight holds the weights from before an error. Completing it takes all ranks; after an error that
// is not one of all, some wait in a call of the step or are gone.
void Trainer::finish_save(bool all_are_here) {
  if (!checkpoints_->in_flight()) return;
  if (!all_are_here) {
    if (ranks_.is_first())
      log::warning("{}", checkpoints_->left_text("finishing it takes all ranks, and not all go on"));
    return;
  }
  try {
    checkpoints_->finish();
  } catch (const std::exception& second) {
    log::warning("the save in progress was not completed: {}", second.what());
  }
}

Trainer::End Trainer::run(std::function<void()> before_saves) {
  before_saves_ = std::move(before_saves);
  try {
    return train();
  } catch (const std::exception& error) {
    finish_save(ranks_.world->size() == 1);
    events_.add("failed", state_.step, error.what());
    throw;
  }
}

Trainer::End Trainer::train() {
  const std::optional<Machine> machine = speed_.find_peaks();
  if (machine && traces_) traces_->plan_times(plan_, *machine);
  if (state_.step < config_.training.steps) log::info("Training starts at step {}", state_.step + 1);
  show_first_sample();
  speed_.begin(state_.step, data_->seconds_waited());
  if (is_stop_asked(signals_, *ranks_.control)) {  // while the ranks got ready
    log_stop_of_others(signals_);
    log::info("Stopped before step {}; nothing was saved", state_.step + 1);
    return End::stopped;
  }
  events_.add("start", state_.step, state_.step > 0 ? fmt::format("goes on after step {}", state_.step) : "",
              start_of_run(experiment_, plan_, device_, speed_.planned_seconds()));
  data_watch_->look_at_the_rest();
  saved_at_ = state_.step;
  forget_most_held(device_);
  const Stopwatch before_steps;
  if (const std::vector<std::string> left_out = results_left_out(); !left_out.empty()) {
    log::info("The validation after step {} had no result yet, so it comes first", state_.step);
    if (!validate(left_out) || stop_asked_) return end_early();
  }
  speed_.leave_out(before_steps.seconds());
  while (state_.step < config_.training.steps) {
    const Stopwatch watch;
    const StepOutputs out = timed_step();
    const bool is_last = state_.step == config_.training.steps,
               ends_here = is_last || stop_asked_ || data_is_bad_;
    if (state_.step == 1 || state_.step % config_.metrics.log_freq == 0 || ends_here) log_step(out);
    if (++steps_here_ == 3 && device_.is_gpu()) report_gpu_memory();
    check_health(out);
    reporter_->progress(state_.step, watch.seconds(), speed_.planned_text());
    const Stopwatch besides;
    checkpoints_->poll();
    // Whatever a validation throws, the steps that are to be saved are not lost.
    const bool is_saved = checkpoints_->is_due(state_.step, is_last) || ends_here;
    if (is_saved) save(is_last);
    const bool is_unread = !validate(results_due(config_, state_.step));
    speed_.leave_out(besides.seconds());
    if (is_unread || ((stop_asked_ || data_is_bad_) && !is_last)) return end_early();
  }
  checkpoints_->finish();
  reporter_->flush();
  warn_of_skips_at_end();
  events_.add("finished", state_.step, "");
  log::info("Training completed");
  return End::completed;
}

// Those of the step that the run goes on from which no run has finished.
std::vector<std::string> Trainer::results_left_out() {
  if (!checkpoints_->resumes() || state_.step == 0) return {};
  checkpoint::PatientRanks group(*ranks_.control);
  std::string names;
  group.on_rank_0([&] { names = fmt::format("{}", fmt::join(results_missing(config_, state_.step), "\n")); });
  names = group.of_rank_0(names);
  if (names.empty()) return {};
  const std::vector<std::string_view> parts = split_text(names, '\n');
  return {parts.begin(), parts.end()};
}

// False if its data cannot be read.
bool Trainer::validate(const std::vector<std::string>& results) {
  const Validation::Outcome outcome =
      validation_->run(state_.step, results, *engine_, plan_.memory, *reporter_, spans());
  if (outcome.end == Validation::End::stopped) stop_asked_ = true;
  if (outcome.end != Validation::End::unread) return true;
  data_is_bad_ = true;
  data_watch_->object(outcome.problem);
  return false;
}

Trainer::End Trainer::end_early() {
  const std::string_view not_saved = save_early();
  if (data_is_bad_) data_watch_->refuse(state_.step, not_saved);
  log_stop_of_others(signals_);
  events_.add("stopped", state_.step, checkpoints_->saves() ? "saved" : "nothing was saved");
  log::info("Stopped after step {}; {}", state_.step,
            checkpoints_->saves() ? "the same command continues from here"
                                  : fmt::format("nothing was saved because {}", not_saved));
  return End::stopped;
}

StepOutputs Trainer::timed_step() try {
  const int64_t number = state_.step + 1;
  for (Communicator* all : {ranks_.world.get(), ranks_.control.get()}) all->state().set_step(number);
  const Stopwatch watch;
  const double waited = data_->seconds_waited();
  StepProfile* traced = traces_ ? traces_->begin(number, stream_, engine_->input_ring()) : nullptr;
  std::optional<StepProfile> profile;
  // Nothing can be timed within graphs, and either all ranks launch graphs or none.
  if (!traced && speed_.wants_profile() && !engine_->graphs().is_enabled()) profile.emplace(stream_);
  StepOutputs out = step(profile ? &*profile : traced);
  if (traces_) traces_->end(number);
  speed_.add({.number = number,
              .seconds = watch.seconds(),
              .seconds_waited = data_->seconds_waited() - waited,
              .is_last = number == config_.training.steps || stop_asked_ || data_is_bad_},
             profile ? &*profile : nullptr);
  // The first step includes setting up libraries and connections; from now on a silent peer is a lost peer.
  for (Communicator* all : {ranks_.world.get(), ranks_.control.get()})
    all->state().set_timeout_seconds(config_.comm.train_timeout_seconds);
  return out;
} catch (const Unread&) {
  const std::string_view not_saved = save_early();
  data_watch_->refuse(state_.step, not_saved);
}

// A mask that is not what was meant shows best in a sample.
void Trainer::show_first_sample() {
  if (!reads_chats(config_.training)) return;
  fail_together(*ranks_.control, "first conversation", [&] {
    if (ranks_.is_first()) log_first_sample();
  });
}

void Trainer::log_first_sample() {
  const data::MixedLoader& data = data_->loader();
  const int64_t at = state_.data_position, row = experiment_.shape.sequence;
  const std::vector<int64_t> read = data.mixture().counts(at),
                             quotas = data.mixture().begun(at + 1).back().quotas;
  for (size_t i = 0; i < data.sources().size(); ++i) {
    const auto& [name, loader] = data.sources()[i];
    if (!loader->options().encoder.chat || quotas[i] == 0) continue;
    // A sample as the loader has it: this rank may hold chunks of it, and other sources come before it.
    std::vector<int32_t> inputs(row), targets(row), starts(row);
    loader->read(read[i], 1, {inputs.data(), targets.data(), starts.data()});
    return log::info("First conversation{}; the loss counts the text in [[double brackets]]:\n{}",
                     name.empty() ? "" : " of " + name,
                     marked_text(*experiment_.tokenizer, inputs, targets, starts));
  }
}

void Trainer::save(bool is_last) {
  note_data(state_, data_->loader());
  if (ranks_.is_first()) {
    before_saves_();
    try {
      note_files(state_, data_->loader());
    } catch (const std::exception& error) {  // the other ranks begin the save, and steps are not to be lost
      log::warning("the checkpoint does not say which bytes the training data had: {}", error.what());
    }
  }
  const HostSpans::Scope saving(spans(), HostSpans::Track::host, "save");
  if (checkpoints_->save(*engine_, state_, is_last)) saved_at_ = state_.step;
}

// For a run that ends before its last step. Returns why it has no checkpoint of this one; empty: it has.
std::string_view Trainer::save_early() {
  while (saved_at_ != state_.step || !checkpoints_->finish_or_repeat()) save(false);
  reporter_->flush();
  if (!checkpoints_->saves())
    return checkpoints_->is_enabled() ? "checkpoint.load_only is true" : "checkpoint.enable is false";
  return steps_here_ == 0 ? "no step was made" : "";
}

void Trainer::log_step(const StepOutputs& out) {
  const double tokens = data_->valid_tokens();
  const GlobalLoss loss = global_loss(ranks_, out.loss_sum, tokens);
  StepMetrics m;
  m.step = state_.step;
  m.global_avg_loss = loss.mean;
  m.global_max_loss = loss.largest;
  if (config_.training.z_loss_weight > 0) m.z_loss = global_loss(ranks_, out.z_loss_sum, tokens).mean;
  m.grad_norm = out.grad_norm;
  m.learning_rate = learning_rate(state_.schedule_step - 1);
  m.tokens_seen = state_.tokens_seen;
  m.loss_scale = out.loss_scale;
  m.skipped_steps = state_.skipped_steps;
  if (experiment_.shape.spikes.sigma > 0) m.skipped_spikes = state_.skipped_spikes;
  speed_.fill(m, data_->seconds_waited());
  const MemoryMaxima memory = memory_maxima(device_, plan_.memory);
  m.memory_gib = memory.shown.gib, m.memory_percent = memory.shown.percent;
  m.active_gib = memory.active.gib, m.active_percent = memory.active.percent;
  m.reserved_gib = memory.reserved.gib, m.reserved_percent = memory.reserved.percent;
  const std::vector<Float8Operand> operands = read_float8(*engine_, *ranks_.control);
  MetricsReporter::Scalars more = float8_scalars(operands);
  if (sources_) {
    const MetricsReporter::Scalars of_sources = sources_->log(state_.data_position);
    more.insert(more.end(), of_sources.begin(), of_sources.end());
    data_watch_->object(sources_->over_limit(state_.data_position));
  }
  reporter_->log_step(m, more);
  if (!ranks_.is_first()) return;
  for (const std::string& warning : float8_alerts_.check(operands)) {
    log::warning("step {}: {}", state_.step, warning);
    events_.add("alert", state_.step, warning);
  }
}

// Once libraries, connections and graphs have taken their memory.
void Trainer::report_gpu_memory() const {
  const int64_t plan = plan_.memory.total_bytes(),
                besides = gpu_bytes_in_use(device_) - gpu_bytes_before_ - plan;
  const std::string text = gpu_memory_text({.plan_bytes = plan, .besides_bytes = besides});
  besides > kGpuLibraryBytes ? log::warning("{}", text) : log::info("{}", text);
}

}  // namespace ottava
