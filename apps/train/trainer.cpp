#include "apps/train/trainer.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <utility>

#include "apps/decide/available_memory.h"
#include "apps/decide/rehearsal.h"
#include "apps/predict/planned_machine.h"
#include "apps/report/startup_report.h"
#include "apps/report/throughput.h"
#include "apps/train/chat_data.h"
#include "apps/train/skipped_step.h"
#include "core/counted.h"
#include "core/data/data_file.h"
#include "core/error.h"
#include "core/log.h"
#include "core/optim/lr_schedule.h"
#include "parallel/ranks/agree.h"

namespace ottava {
namespace {

Stream stream_of(Device device) {
  return device.type == DeviceType::cuda ? Stream::cuda(device.index) : Stream::cpu();
}

LossScale initial_loss_scale(const TrainingConfig& c) {
  std::optional<double> constant = c.constant_loss_scale();
  return constant ? LossScale::constant(*constant) : LossScale::dynamic();
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Trainer::Trainer(Experiment experiment, RankGroups& ranks, Device device, const StopSignals* signals)
    : experiment_(std::move(experiment)),
      ranks_(ranks),
      signals_(signals),
      device_(device),
      stream_(stream_of(device)),
      loss_scale_(initial_loss_scale(experiment_.config.training)),
      step_time_check_(experiment_.decisions),
      float8_alerts_(experiment_.config.float8) {
  const Config& c = experiment_.config;
  const TrainingShape& shape = experiment_.shape;
  data_ = std::make_unique<BatchSource>(open_training_data(experiment_, ranks),
                                        training_batches(experiment_, ranks));
  if (c.training.epochs)
    experiment_.config.training.steps = steps_of_epochs(experiment_, data_->loader(), ranks);
  validation_ = open_validation_data(experiment_, ranks);
  tasks_ = open_tasks(experiment_);
  for (int32_t id = 0; !validation_.empty() && id < experiment_.tokenizer->vocab_size(); ++id) {
    const bool is_special = experiment_.tokenizer->is_special(id);
    token_bytes_.push_back(is_special ? 0
                                      : static_cast<int32_t>(experiment_.tokenizer->token_bytes(id).size()));
  }
  RankState& state = ranks.world->state();
  state.calls().set_capacity(c.comm.trace_buf_size);
  record_failures(state, (std::filesystem::path(c.job.dump_folder) / c.comm.save_traces_folder).string(),
                  c.comm.save_traces_file_prefix);
  ranks.coordinates.units = shape.pipeline.units_of(ranks.pp->rank());
  checkpoints_ = std::make_unique<Checkpoints>(experiment_, ranks_, stream_, spans());
  // The first tokens are made while memory is planned and weights are drawn.
  data_->start(checkpoints_->data_position_to_load());
  for (ValidationSet& set : validation_) set.data->start(0);

  data_watch_ = std::make_unique<DataWatch>(data_->loader(), *ranks.control);
  data_watch_->look(c.training.data_check_seconds);
  if (shape.sequence_losses) {
    sources_ = std::make_unique<SourceReport>(c.training, data_->loader(), ranks);
    sources_->check_epochs(c.training.steps * experiment_.global_batch);
  }
  const GraphUse graphs = decide_graphs(c.training.cuda_graphs, device, *ranks.world, shape.pipeline.is_on());
  experiment_.shape.parameters.reductions_cross = reductions_cross(shape.parameters, graphs.on);
  if (c.profiling.enable_profiling) {
    traces_ =
        std::make_unique<StepTraces>(experiment_, ranks, device, spans_, record_spans(shape, device, ranks));
  }
  plan_ = record_step(shape, device, ranks);
  require_memory(plan_.memory, device, *ranks.control,
                 saves_asynchronously(c.checkpoint)
                     ? std::optional(snapshot_bytes(experiment_, ranks.coordinates))
                     : std::nullopt);
  checkpoints_->reserve_snapshot(device);
  require_validation_data();
  if (ranks.world->rank() == 0) {
    log_startup_report(experiment_, plan_, device, ranks);
    for (const data::MixedLoader::Source& source : data_->loader().sources()) {
      const std::string own = name_of_data("training.dataset", c.training.dataset, c.training.dataset_path);
      log::info("Data: {}", data_text(source.name.empty() ? own : source.name, *source.loader));
    }
    for (const ValidationSet& set : validation_) {
      const std::string own = name_of_data("validation.dataset", c.validation.dataset, set.paths);
      log::info("Validation data: {}",
                data_text(set.name.empty() ? own : set.name, *set.data->loader().sources()[0].loader));
    }
  }
  if (device.type == DeviceType::cuda) {
    gpu_bytes_before_ = gpu_bytes_in_use(device);
    rehearse(experiment_, plan_, stream_, ranks);
  }
  arena_ = std::make_unique<Arena>(plan_.memory, device);
  engine_ = std::make_unique<TrainingEngine>(shape, stream_, *arena_, ranks, plan_.matmul_workspace_bytes);
  log::info("CUDA graphs: {}", graphs.reason);
  if (device.type == DeviceType::cuda && !experiment_.sm_budget.reason.empty())
    log::info("SM budget: {}", experiment_.sm_budget.reason);
  if (graphs.on) engine_->graphs().enable(*ranks.world);
  if (loss_scale_.is_dynamic()) state_.loss_scale = loss_scale_.state();
  checkpoints_->load(*engine_, state_);
  if (state_.loss_scale) loss_scale_.restore(*state_.loss_scale);
  engine_->restore(state_.spikes);
  check_data_unchanged();
  leave_out_data();
  reporter_ = std::make_unique<MetricsReporter>(MetricsReporter::Options{.config = c.metrics,
                                                                         .folder = c.job.dump_folder,
                                                                         .total_steps = c.training.steps,
                                                                         .resumed_at = state_.step,
                                                                         .rank = ranks.world->rank(),
                                                                         .world_size = ranks.world->size()});
  if (ranks.world->rank() == 0 && c.metrics.enable_json_lines)
    events_ = RunEvents(c.job.dump_folder, state_.step);
}

Trainer::~Trainer() = default;

// The default of `dataset` names a text that may be another.
std::string Trainer::name_of_data(std::string_view key, const std::string& name,
                                  const std::vector<std::string>& paths) const {
  return experiment_.config.provenance.origins.contains(key) ? name : data::names_of_sources(paths);
}

double Trainer::learning_rate(int64_t step) const {
  const Config& c = experiment_.config;
  return ottava::learning_rate({.lr = c.optimizer.lr, .steps = c.training.steps, .schedule = c.lr_scheduler},
                               step);
}

StepOutputs Trainer::step(StepProfile* profile) {
  const HostTokens& tokens = [&]() -> const HostTokens& {
    const HostSpans::Scope reading(spans(), HostSpans::Track::data,
                                   fmt::format("read step {}", state_.step + 1));
    return data_->read(state_.data_position);
  }();
  // One exchange per step: how many tokens count, whether any rank was asked to stop or has seen bad data.
  double shared[3] = {static_cast<double>(data_->valid_tokens()),
                      signals_ && signals_->received() != 0 ? 1.0 : 0.0, data_watch_->poll() ? 1.0 : 0.0};
  if (ranks_.world->size() > 1) {
    const HostSpans::Scope sharing(spans(), HostSpans::Track::host, "tokens and stop");
    // Ranks of a pipeline and of tensor parallel read the same tokens: only the first of each group counts
    // them.
    if (ranks_.tensor_parallel.rank() != 0 || ranks_.pp->rank() != 0) shared[0] = 0;
    Stream host = Stream::cpu();
    ranks_.control->all_reduce(host, {.send = view_of(shared, {3}), .recv = {}, .label = "tokens and stop"})
        .wait(host);
  }
  stop_asked_ = shared[1] > 0;
  data_is_bad_ = shared[2] > 0;
  StepInputs inputs{.learning_rate = learning_rate(state_.schedule_step),
                    .loss_scale = loss_scale_.value(),
                    .optimizer_step = state_.optimizer_step + 1,
                    .valid_tokens = static_cast<int64_t>(shared[0]),
                    .update_after = checkpoints_->end_of_copies()};
  const HostSpans::Scope training(spans(), HostSpans::Track::host, "train step");
  StepOutputs out = engine_->train_step(tokens, inputs, profile);
  out.valid_tokens = inputs.valid_tokens;
  if (sources_) sources_->add(data_->sources(), out.sequence_losses);
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
  return out;
}

// By a signal that came while the ranks got ready.
bool Trainer::is_stop_asked_anywhere() {
  double asked = signals_ && signals_->received() != 0 ? 1 : 0;
  if (ranks_.world->size() > 1) {
    Stream host = Stream::cpu();
    ranks_.control->all_reduce(host, {.send = view_of(&asked, {1}), .label = "stop"}).wait(host);
  }
  return asked > 0;
}

Trainer::End Trainer::run() {
  try {
    return train();
  } catch (const std::exception& error) {
    events_.add("failed", state_.step, error.what());
    throw;
  }
}

Trainer::End Trainer::train() {
  const Config& c = experiment_.config;
  find_peaks();
  log::info("Training starts at step {}", state_.step + 1);
  show_first_sample();
  last_log_ = {seconds_now(), state_.step, data_->seconds_waited()};
  if (is_stop_asked_anywhere()) {
    log::info("Stopped before step {}; nothing was saved", state_.step + 1);
    return End::stopped;
  }
  events_.add("start", state_.step, state_.step > 0 ? fmt::format("goes on after step {}", state_.step) : "",
              start_of_run(experiment_, plan_, device_));
  data_watch_->look_at_the_rest();
  while (state_.step < c.training.steps) {
    ranks_.world->state().set_step(state_.step + 1);
    ranks_.control->state().set_step(state_.step + 1);
    const double begin = seconds_now(), waited = data_->seconds_waited();
    const int64_t number = state_.step + 1;
    StepProfile* traced = traces_ ? traces_->begin(number, stream_, engine_->input_ring()) : nullptr;
    std::optional<StepProfile> profile;
    // Within graphs there is nothing to time, and all ranks launch theirs or none.
    if (!traced && pace_.wants_profile() && !engine_->graphs().is_enabled()) profile.emplace(stream_);
    StepOutputs out = step(profile ? &*profile : traced);
    if (traces_) traces_->end(number);
    keep_pace(seconds_now() - begin - (data_->seconds_waited() - waited), profile ? &*profile : nullptr);
    const std::string checked = step_time_check_.add(seconds_now() - begin);
    if (!checked.empty() && ranks_.world->rank() == 0) log::info("{}", checked);
    // The first step includes set-up of libraries and connections; from now on a silent peer is a lost peer.
    const auto timeout = static_cast<double>(c.comm.train_timeout_seconds);
    ranks_.world->state().set_timeout_seconds(timeout);
    ranks_.control->state().set_timeout_seconds(timeout);
    if (state_.step == 1 || state_.step % c.metrics.log_freq == 0 || state_.step == c.training.steps)
      log_step(out);
    if (device_.type == DeviceType::cuda && ++steps_here_ == 3) report_gpu_memory();
    check_health(out);
    reporter_->progress(state_.step, seconds_now() - begin, pace_.short_text());
    if (!validation_.empty() && (state_.step == 1 || state_.step % c.validation.freq == 0)) validate();
    if (!tasks_.empty() &&
        (state_.step == 1 || state_.step % c.evaluation.freq == 0 || state_.step == c.training.steps))
      evaluate();
    checkpoints_->poll();
    const bool is_last = state_.step == c.training.steps;
    if (checkpoints_->is_due(state_.step, is_last) || ((stop_asked_ || data_is_bad_) && !is_last))
      save(is_last);
    if (data_is_bad_ && !is_last) {
      checkpoints_->finish();
      reporter_->flush();
      data_watch_->refuse(state_.step, checkpoints_->is_enabled());
    }
    if (stop_asked_ && !is_last) {
      checkpoints_->finish();
      reporter_->flush();
      events_.add("stopped", state_.step, checkpoints_->is_enabled() ? "saved" : "nothing was saved");
      log::info("Stopped after step {}{}", state_.step,
                checkpoints_->is_enabled() ? "; the same command continues from here"
                                           : "; nothing was saved because checkpoint.enable is false");
      return End::stopped;
    }
  }
  checkpoints_->finish();
  reporter_->flush();
  events_.add("finished", state_.step, "");
  log::info("Training completed");
  return End::completed;
}

// A mask that is not what was meant is best seen.
void Trainer::show_first_sample() {
  if (!reads_chats(experiment_.config.training) || ranks_.world->rank() != 0) return;
  const HostTokens& tokens = data_->read(state_.data_position);
  const auto row = static_cast<size_t>(experiment_.shape.sequence);
  log::info("First conversation, the loss counts what is in [[double brackets]]:\n{}",
            marked_text(*experiment_.tokenizer, tokens.inputs.first(row), tokens.targets.first(row),
                        tokens.document_start.first(row)));
}

void Trainer::save(bool is_last) {
  note_data();
  const HostSpans::Scope saving(spans(), HostSpans::Track::host, "save");
  checkpoints_->save(*engine_, state_, is_last);
  if (checkpoints_->is_enabled()) events_.add("saved", state_.step, "");
}

// Sum over the ranks that see different tokens, and the largest mean of those that see different sequences.
Trainer::GlobalLoss Trainer::global_loss(double sum, double tokens) {
  double sums[2] = {sum, tokens}, sequences[2] = {sum, tokens}, largest[1] = {};
  Stream host = Stream::cpu();
  if (ranks_.control_cp->size() > 1) {
    ranks_.control_cp->all_reduce(host, {.send = view_of(sequences, {2}), .recv = {}, .label = "loss"})
        .wait(host);
  }
  if (sequences[1] > 0) largest[0] = sequences[0] / sequences[1];
  if (ranks_.loss->size() > 1) {
    ranks_.control_loss->all_reduce(host, {.send = view_of(sums, {2}), .recv = {}, .label = "loss"})
        .wait(host);
    ranks_.control_loss
        ->all_reduce(
            host, {.send = view_of(largest, {1}), .recv = {}, .op = ReduceOp::max, .label = "largest loss"})
        .wait(host);
  }
  return {sums[1] > 0 ? sums[0] / sums[1] : 0, largest[0], sums[1]};
}

void Trainer::log_step(const StepOutputs& out) {
  GlobalLoss loss = global_loss(out.loss_sum, static_cast<double>(data_->valid_tokens()));
  const double now = seconds_now(), seconds = now - last_log_.seconds;
  const int64_t steps = state_.step - last_log_.step;
  const double waited = data_->seconds_waited();
  StepMetrics m;
  m.step = state_.step;
  m.global_avg_loss = loss.mean;
  m.global_max_loss = loss.largest;
  if (experiment_.config.training.z_loss_weight > 0)
    m.z_loss = global_loss(out.z_loss_sum, static_cast<double>(data_->valid_tokens())).mean;
  m.grad_norm = out.grad_norm;
  m.learning_rate = learning_rate(state_.schedule_step - 1);
  m.tokens_seen = state_.tokens_seen;
  m.step_seconds = seconds / static_cast<double>(steps);
  m.data_seconds = (waited - last_log_.seconds_waited) / static_cast<double>(steps);
  m.loss_scale = loss_scale_.value();
  m.skipped_steps = state_.skipped_steps;
  if (experiment_.shape.spikes.sigma > 0) m.skipped_spikes = state_.skipped_spikes;
  const StepRate rate{
      .seconds = m.step_seconds,
      .tokens = static_cast<double>(experiment_.tokens_per_step()),
      .ranks = ranks_.world->size(),
      .model_flops_per_token = model_flops_per_token(experiment_.shape.model, experiment_.shape.sequence)};
  raise_peaks(peaks_, device_, peak_search(), [&](const DevicePeaks& peaks) {
    return throughput(plan_, peaks, rate).utilization_percent / 100;
  });
  const Throughput rates = throughput(plan_, peaks_, rate);
  m.tokens_per_second = rates.tokens_per_second;
  m.devices = ranks_.world->size();
  m.tflops = rates.tflops;
  m.mfu_percent = rates.mfu_percent;
  m.conservative_mfu_percent = rates.conservative_mfu_percent;
  m.utilization_percent = rates.utilization_percent;
  m.runs_float8 = plan_.flops(Precision::fp8) > 0;
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
  if (ranks_.world->rank() == 0) {
    for (const std::string& warning : float8_alerts_.check(operands)) {
      log::warning("step {}: {}", state_.step, warning);
      events_.add("alert", state_.step, warning);
    }
  }
  last_log_ = {now, state_.step, waited};
}

// When libraries, connections and graphs have taken what they take.
void Trainer::report_gpu_memory() const {
  const int64_t plan = plan_.memory.total_bytes(),
                besides = gpu_bytes_in_use(device_) - gpu_bytes_before_ - plan;
  const std::string text = gpu_memory_text({.plan_bytes = plan, .besides_bytes = besides});
  besides > kGpuLibraryBytes ? log::warning("{}", text) : log::info("{}", text);
}

PeakSearch Trainer::peak_search() const {
  return {.metrics = experiment_.config.metrics,
          .decisions = experiment_.decisions,
          .cache = experiment_.config.training.gemm_cache,
          .uses_fp32 = plan_.flops(Precision::fp32) > 0,
          .uses_bf16 = plan_.flops(Precision::bf16) + plan_.flops(Precision::fp8) > 0};
}

void Trainer::find_peaks() {
  peaks_ = find_device_peaks(device_, peak_search());
  log::info("Peak FLOPS used for computing MFU: {:.3e} ({})", peaks_.bf16, peaks_.source);
  if (plan_.flops(Precision::fp8) > 0) {
    log::info(
        "Peak FLOPS of FP8: {:.3e}; mfu is against the bf16 peak, mfu(fp8) the same FLOPs against this one, "
        "util weighs each product with the peak of its own precision",
        peaks_.fp8);
  }
  const std::optional<Machine> machine = running_machine(device_, peaks_, experiment_);
  // A plan is one rank's: what a stage waits for others is not in it.
  if (machine && ranks_.world->rank() == 0 && !experiment_.shape.pipeline.is_on())
    pace_ = PlannedPace(predict_step(plan_, *machine));
}

void Trainer::keep_pace(double seconds, StepProfile* profile) {
  if (profile) log::warning("step {}: {}", state_.step, pace_.blame(profile->seconds()));
  const std::string sentence = pace_.add(seconds);
  if (sentence.empty()) return;
  pace_.is_slower() ? log::warning("step {}: {}", state_.step, sentence)
                    : log::info("step {}: {}", state_.step, sentence);
}

void Trainer::check_health(const StepOutputs& out) {
  if (!out.skipped) return;
  if (out.why != kNotFinite) {
    const std::string spike = describe_spike(out, experiment_.shape.spikes);
    events_.add("skipped", state_.step, spike);
    if (ranks_.control->rank() == 0)
      log::warning("step {} was skipped: {}; weights, moments and t did not move", state_.step, spike);
    return;
  }
  const std::string where = describe_skipped_step(*engine_, *ranks_.control);
  events_.add("skipped", state_.step, where);
  if (ranks_.control->rank() == 0) {
    log::warning(
        "step {} was skipped: the gradient norm is not finite; weights, moments and t did not move; {}",
        state_.step, where);
  }
  const int64_t limit = experiment_.config.training.max_consecutive_skipped_steps;
  if (state_.consecutive_skips > limit) {
    fail<NumericsError>(
        "training",
        "{} consecutive steps had non-finite gradients (training.max_consecutive_skipped_steps {}): lower "
        "optimizer.lr, raise lr_scheduler.warmup_steps, or look at the data after sample {}",
        state_.consecutive_skips, limit, state_.data_position);
  }
}

void Trainer::validate() {
  const HostSpans::Scope validating(spans(), HostSpans::Track::host, "validate");
  const double begin = seconds_now();
  for (ValidationSet& set : validation_) validate(set);
  last_log_.seconds += seconds_now() - begin;
}

void Trainer::validate(ValidationSet& set) {
  const ValidationConfig& v = experiment_.config.validation;
  const double begin = seconds_now();
  double sum = 0, tokens = 0, nats = 0, bytes = 0;
  const int64_t per_step = set.data->samples_per_step();
  for (int64_t i = 0; v.steps < 0 || i < v.steps; ++i) {
    if (v.steps < 0 && is_past_end(*set.data, (i + 1) * per_step)) break;
    const HostTokens& batch = set.data->read(i * per_step);
    // Where the text ends is known once it was read to the end, which may be only now.
    if (v.steps < 0 && is_past_end(*set.data, (i + 1) * per_step)) break;
    sum += engine_->validate(batch);
    tokens += static_cast<double>(set.data->valid_tokens());
    const std::vector<float> losses = engine_->token_losses();
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      const int32_t target = batch.targets[i];
      const int32_t count =
          target >= 0 && target < std::ssize(token_bytes_) ? token_bytes_[static_cast<size_t>(target)] : 0;
      bytes += count;
      if (count > 0) nats += losses[i];
    }
  }
  const GlobalLoss of_bytes = global_loss(engine_->over_stages(nats), bytes);
  const GlobalLoss loss = global_loss(engine_->over_stages(sum), tokens);
  reporter_->log_validation(
      state_.step,
      {.name = set.name,
       .loss = loss.mean,
       .tokens_per_second = loss.tokens / (seconds_now() - begin) / ranks_.world->size(),
       .bits_per_byte = of_bytes.mean / std::log(2.0)},
      memory_maxima(device_, plan_.memory).shown);
}

void Trainer::evaluate() {
  const HostSpans::Scope evaluating(spans(), HostSpans::Track::host, "evaluate");
  const double begin = seconds_now();
  for (const ChoiceTask& task : tasks_) {
    const ChoiceScores scores = score_task(task, experiment_, *engine_, ranks_);
    MetricsReporter::Scalars scalars;
    for (const auto& [name, accuracy] : {std::pair{"acc", scores.acc}, std::pair{"acc_norm", scores.acc_norm},
                                         std::pair{"acc_bytes", scores.acc_bytes}}) {
      scalars.emplace_back(fmt::format("evaluation_metrics/{}/{}", task.name, name), accuracy.value);
      scalars.emplace_back(fmt::format("evaluation_metrics/{}/{}_stderr", task.name, name),
                           accuracy.standard_error);
    }
    reporter_->log_evaluation(state_.step, to_text(scores), scalars);
  }
  last_log_.seconds += seconds_now() - begin;
}

// The first batch is read for the first validation anyway; text that ends before it does is found here.
void Trainer::require_validation_data() {
  const ValidationConfig& v = experiment_.config.validation;
  for (ValidationSet& set : validation_) {
    const int64_t per_step = set.data->samples_per_step();
    set.data->read(0);
    if (v.steps >= 0 || !is_past_end(*set.data, per_step)) continue;
    fail<DataError>("validation",
                    "{} make fewer than the {} of {} that one step reads: give more text, or "
                    "lower validation.local_batch_size or validation.seq_len",
                    data::names_of_sources(set.paths), counted(per_step, "sequence"),
                    counted(v.seq_len, "token"));
  }
}

// How many samples there are is known when all of them have been tokenized, which some ranks find out before
// others: what one knows, all know, so that they stop together.
bool Trainer::is_past_end(BatchSource& data, int64_t samples) {
  int64_t known = data.loader().sources()[0].loader->samples_per_epoch().value_or(-1);
  if (ranks_.control->size() > 1) {
    Stream host = Stream::cpu();
    ranks_.control
        ->all_reduce(
            host,
            {.send = view_of(&known, {1}), .recv = {}, .op = ReduceOp::max, .label = "validation samples"})
        .wait(host);
  }
  return known >= 0 && samples > known;
}

void Trainer::check_data_unchanged() {
  const std::string mixture = data_->loader().order_text(state_.data_position);
  if (!state_.mixture.empty() && state_.mixture != mixture) {
    fail<ConfigError>(
        "training.mixture",
        "the checkpoint was trained with other weights than those of this configuration: {} there, {} "
        "here (from which sample on how many of 65536): set them as they were and change them by "
        "training.mixture_stages from a later step on",
        state_.mixture, mixture.empty() ? "no mixture" : mixture);
  }
  const uint64_t now = data_->loader().fingerprint(state_.data_position);
  if (state_.data_fingerprint != 0 && state_.data_fingerprint != now) {
    log::warning(
        "the training data, tokenizer or seq_len differ from those of the checkpoint: sample {} is not where "
        "it stopped",
        state_.data_position);
  }
  note_data();
}

void Trainer::leave_out_data() {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  const int64_t samples = c.advance_data_steps * experiment_.global_batch;
  if (samples == 0 || state_.step != c.load_step) return;
  log::info("The data of {} is left out: samples {} to {} (checkpoint.advance_data_steps)",
            counted(c.advance_data_steps, "step"), state_.data_position, state_.data_position + samples - 1);
  state_.data_position += samples;
  note_data();
}

void Trainer::note_data() {
  state_.mixture = data_->loader().order_text(state_.data_position);
  state_.data_fingerprint = data_->loader().fingerprint(state_.data_position);
}

}  // namespace ottava
