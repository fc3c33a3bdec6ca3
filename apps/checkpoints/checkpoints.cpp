#include "apps/checkpoints/checkpoints.h"

#include <fmt/ranges.h>

#include <set>

#include "apps/checkpoints/float8_history.h"
#include "apps/config/changed_keys.h"
#include "core/contains.h"
#include "core/cuda/runtime.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/safetensors_folder.h"
#include "core/log.h"
#include "core/text/counted.h"
#include "core/text/number.h"
#include "parallel/checkpoint/attempts.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/huggingface.h"
#include "parallel/checkpoint/layout.h"
#include "parallel/sharding/repeated_weights.h"

namespace ottava {
namespace {

checkpoint::ShardMemory memory_of(const Tensor& tensor) { return {tensor.dtype, tensor.data}; }

// Parameters of which the checkpoint has no moments begin with the next step.
MomentsBegun moments_begun(const TrainingState& saved, const checkpoint::Manifest& manifest,
                           const std::vector<ParameterSpec>& specs) {
  std::set<std::string_view> stored;
  for (const checkpoint::Manifest::Tensor& tensor : manifest.tensors) stored.insert(tensor.name);
  MomentsBegun out;
  for (const ParameterSpec& spec : specs) {
    if (!traits_of(spec.rule).counts_updates) continue;
    int64_t begun = saved.optimizer_step;
    if (stored.contains(checkpoint::stored_name(spec.parts[0].hf_name, moments_of(spec.rule).front()))) {
      const auto found = saved.moments_begun.find(spec.name);
      begun = found == saved.moments_begun.end() ? 0 : found->second;
    }
    if (begun > 0) out[spec.name] = begun;
  }
  return out;
}

// Whether a run of ours says so in what it has saved.
bool was_trained_with(UpdateRule rule, const std::string& folder) {
  const std::string file = folder + "/ottava_config.yaml";
  try {
    return is_there(file) && load_config(file).optimizer.names(rule);
  } catch (const Error&) {  // of a version whose keys were others
    return false;
  }
}

void require_weights_in(const std::string& folder) {
  if (is_there(folder + "/model.safetensors") || is_there(folder + "/" + safetensors_index_name("model")))
    return;
  fail<ConfigError>("model",
                    "flavor hf starts from the weights in {}, which has none (*.safetensors): set "
                    "checkpoint.initial_load_path to the folder that has them, or model.initial to random "
                    "for random weights",
                    folder);
}

}  // namespace

checkpoint::TrainedParameters trained_parameters(Fsdp& parameters, Stream& stream, bool with_optimizer) {
  checkpoint::TrainedParameters out{
      .specs = parameters.specs(), .at = parameters.coordinates(), .with_optimizer = with_optimizer};
  for (int p = 0; p < std::ssize(parameters.specs()); ++p) {
    const ParameterShard& s = parameters.shard(p);
    checkpoint::HeldShard& held = out.shards.emplace_back();
    held.weight = memory_of(s.master);
    for (const MomentTraits& m : moments_of(parameters.specs()[p].rule))
      held.moments[m.moment] = memory_of(s.moments[m.moment]);
  }
  if (stream.type() == DeviceType::cuda) {
    out.stream = &stream;
    out.copy = [&stream](void* to, const void* from, size_t bytes) {
      cuda::copy(to, from, bytes, stream.native());
      stream.synchronize();
    };
  }
  return out;
}

Checkpoints::Checkpoints(const Experiment& experiment, RankGroups& ranks, Stream& stream,
                         std::function<void(int64_t step)> on_saved, HostSpans* spans)
    : experiment_(experiment),
      config_(experiment.config.checkpoint),
      stream_(stream),
      coordinates_(ranks.coordinates),
      group_(*ranks.control),
      unreadable_(ranks.unreadable),
      folder_(experiment.config.job.in_dump_folder(experiment.config.checkpoint.folder)) {
  if (!config_.enable) return;
  std::string begin;
  group_.on_rank_0([&] {
    const StepsToLoad found = steps_to_load(experiment.config, ranks.unreadable);
    if (found.is_of_branch) begin = std::to_string(found.steps.front().step);
  });
  branch_begin_ = parse_number<int64_t>(group_.of_rank_0(begin));
  if (config_.load_only) return;
  if (config_.export_dtype != DType::f32 && !config_.last_save_model_only) {
    log::warning("checkpoint.export_dtype {} has no effect without checkpoint.last_save_model_only: true",
                 name_of(config_.export_dtype));
  }
  checkpoint::in_three_attempts(group_,
                                fmt::format("the folder of checkpoints {} could not be used", folder_), [&] {
                                  checkpoint::check_shared_folder(folder_, group_);
                                  group_.on_rank_0([&] { checkpoint::remove_leftovers(folder_); });
                                });
  saver_ = std::make_unique<checkpoint::CheckpointSaver>(
      checkpoint::SaveOptions{.folder = folder_,
                              .layout = experiment.mesh.describe(),
                              .keep_latest_k = static_cast<int>(config_.keep_latest_k),
                              .keep_every = config_.keep_every,
                              .snapshot = config_.async_mode == CheckpointConfig::Async::async_with_pinned_mem
                                              ? checkpoint::Snapshot::Memory::pinned
                                              : checkpoint::Snapshot::Memory::pageable,
                              .spans = spans,
                              .on_saved =
                                  [this, on_saved = std::move(on_saved)](int64_t step) {
                                    first_failure_.clear();
                                    if (on_saved) on_saved(step);
                                  }},
      group_);
  checkpoint::in_three_attempts(group_, "the files that go beside the weights could not be read", [&] {
    group_.on_rank_0([&] {
      files_ = model_files(experiment, config_.last_save_model_only ? config_.export_dtype : DType::f32);
      require_loadable(files_, experiment);
    });
  });
  if (const std::optional<std::string> source = source_config_path(experiment.config)) {
    log::info("Checkpoints keep {} and the files beside it{}{}", *source,
              files_.changes.empty() ? "" : ", but for: ", fmt::join(files_.changes, ", "));
  }
}

Checkpoints::~Checkpoints() = default;

bool Checkpoints::excludes(std::string_view what) const {
  return !branch_begin_ && contains(config_.exclude_from_loading, what);
}

void Checkpoints::load(TrainingEngine& engine, TrainingState& state, Contents what) {
  const bool with_optimizer = !excludes("optimizer") && what == Contents::all;
  auto initialise = [&] {
    const auto seed = static_cast<uint64_t>(experiment_.config.training.seed);
    if (experiment_.repeats_initial_weights)
      return initialise_by_repetition(stream_, engine.parameters(), seed);
    engine.parameters().initialise(seed);
  };
  if (!with_optimizer) initialise();
  // Moments of another update rule are not loaded, and would stay as a broken checkpoint left them.
  const auto clear_moments = [&] { engine.parameters().clear_moments(); };
  clear_moments();
  std::optional<checkpoint::LoadedCheckpoint> loaded;
  if (config_.enable) {
    loaded =
        checkpoint::load_newest(folder_, trained_parameters(engine.parameters(), stream_, with_optimizer),
                                group_, branch_begin_ ? -1 : config_.load_step,
                                {.before_each =
                                     [&](const std::string& folder) {
                                       require_same_model(experiment_, folder);
                                       clear_moments();
                                     },
                                 .first_step = branch_begin_.value_or(0),
                                 .given_up = &unreadable_});
  }
  resumes_ = loaded.has_value();
  only_looks_ = loaded && config_.load_only;
  if (loaded) {
    go_on_from(*loaded, what, engine, state);
  } else {
    if (!config_.initial_load_path || config_.initial_load_model_only) initialise();
    const std::optional<std::string> start = initial_path();
    if (start) load_initial(*start, engine, state);
    // Here too a branch begins, or the same command would go back to step 0 when it is started again.
    state.branch = branch_of(config_);
    if (!start) return;
  }
  engine.parameters().refresh_compute_copies();
}

void Checkpoints::go_on_from(const checkpoint::LoadedCheckpoint& loaded, Contents what,
                             TrainingEngine& engine, TrainingState& state) {
  take_state(loaded, engine.parameters().specs(), state);
  take_history(loaded.path, engine);
  log::info("Loaded checkpoint {} ({} tokens seen)", loaded.path, state.tokens_seen);
  if (const std::string& type = loaded.manifest.tensors[0].type;
      what == Contents::weights_only && type != "F32") {
    log::info("Its weights were exported as {}: results may differ from those with the run's own, float32",
              type);
  }
  if (begins_branch()) state.branch = branch_of(config_);
  if (branch_begin_) {
    log::info(
        "It belongs to the branch that this configuration began ({}), which is continued; to begin the "
        "branch anew, move its checkpoints away",
        state.branch);
  }
  if (saver_) saver_->go_on_after(state.step);
  if (saver_) look_at_later_ones(state.step);
  log_changes(loaded.path);
}

std::optional<std::string> Checkpoints::initial_path() {
  const Config& c = experiment_.config;
  if (config_.initial_load_path) {
    std::string path;  // rank 0's: a run that is on may save a newer one meanwhile
    group_.on_rank_0([&] { path = initial_path_of(c); });
    return group_.of_rank_0(path);
  }
  if (c.model.flavor != "hf" || experiment_.repeats_initial_weights) return std::nullopt;
  const std::string folder = find_assets(c).string();
  if (c.model.initial == ModelConfig::Initial::random) {
    log::info("Initial weights are random (seed {}), not those of {} (model.initial: random)",
              c.training.seed, folder);
    return std::nullopt;
  }
  checkpoint::in_three_attempts(group_, fmt::format("the folder {} could not be read", folder),
                                [&] { group_.together([&] { require_weights_in(folder); }); });
  return folder;
}

// Logs what the saver will set aside.
void Checkpoints::look_at_later_ones(int64_t step) {
  std::string latest;
  checkpoint::in_three_attempts(
      group_, fmt::format("the list of checkpoints in {} could not be read", folder_), [&] {
        group_.on_rank_0([&] {
          const std::vector<checkpoint::SavedStep> steps = checkpoint::list_steps(folder_);
          if (!steps.empty() && steps.back().step > step) latest = std::to_string(steps.back().step);
        });
      });
  latest = group_.of_rank_0(latest);
  goes_back_ = !latest.empty();
  if (!goes_back_ || group_.rank() != 0) return;
  log::info(
      "The run goes back to step {}; the later checkpoints (up to step {}) are kept until its first save, "
      "which renames them to step-N.abandoned",
      step, latest);
}

// What a resubmitted job may have changed unintentionally.
void Checkpoints::log_changes(const std::string& path) const {
  const std::string file = path + "/ottava_config.yaml";
  try {
    for (const std::string& change : changed_keys(read_file(file), file, experiment_.config))
      log::info("Changed since then: {}", change);
  } catch (const Error& error) {
    log::warning("cannot tell what has changed since then: {}", error.what());
  }
}

// Neither is a key that has changed: both follow from the number of ranks.
void Checkpoints::warn_of_other_batches(int64_t sequences_before, int64_t ranks_before) const {
  if (group_.rank() != 0) return;
  if (const int64_t now = experiment_.global_batch; sequences_before > 0 && sequences_before != now) {
    log::warning(
        "the run continues with {} per step on {}, but its checkpoint was made with {} on {}: "
        "training.global_batch_size {} keeps the batch as it was",
        counted(now, "sequence"), counted(group_.size(), "rank"), sequences_before,
        counted(ranks_before, "rank"), sequences_before);
  }
  const ValidationConfig& v = experiment_.config.validation;
  if (v.enable && v.steps > 0 && ranks_before != group_.size()) {
    log::warning(
        "validation.steps {} counts the batches of each data rank, so validation on {} may read another part "
        "than the checkpoint's run did on {}",
        v.steps, counted(group_.size(), "rank"), counted(ranks_before, "rank"));
  }
}

void Checkpoints::load_initial(const std::string& path, TrainingEngine& engine, TrainingState& state) {
  if (!config_.initial_load_model_only) {
    const checkpoint::LoadedCheckpoint loaded{
        path, checkpoint::load_checkpoint(
                  path, trained_parameters(engine.parameters(), stream_, !excludes("optimizer")), group_)};
    take_state(loaded, engine.parameters().specs(), state);
    const TrainingConfig& training = experiment_.config.training;
    if (state.step >= training.steps) {
      fail<ConfigError>("checkpoint.initial_load_path",
                        "{} is at step {}, but the run ends at {}: set a later end, or load only the weights "
                        "(checkpoint.initial_load_model_only: true)",
                        path, state.step, end_of_run(training));
    }
    take_history(path, engine);
    log::info("Loaded {} to continue after step {}", path, state.step);
    return;
  }
  checkpoint::HuggingFaceLoad loaded =
      checkpoint::load_huggingface(path, trained_parameters(engine.parameters(), stream_), group_);
  log::info("Loaded the weights of {} ({})", path, fmt::join(loaded.stored_types, ", "));
  if (const std::vector<std::string> other = model_differences(experiment_, path); !other.empty())
    log::warning("the model in {} differs from this configuration's: {} (config.json there, and here)", path,
                 fmt::join(other, ", "));
  for (const UpdateRuleTraits& r : kUpdateRules) {
    if (r.caution.empty() || !experiment_.config.optimizer.names(r.rule) || was_trained_with(r.rule, path))
      continue;
    log::warning("these weights are trained further with {}: {}", r.name, r.caution);
  }
  if (!loaded.ignored.empty()) log::info("Not used here: {}", fmt::join(loaded.ignored, ", "));
}

// As rank 0 reads it. Ranks that differ in what a checkpoint holds would train different models.
std::optional<std::string> Checkpoints::text_of(const std::string& path) {
  constexpr char kIsThere = 'y';
  std::string text;
  checkpoint::in_three_attempts(group_, fmt::format("{} could not be read", path), [&] {
    group_.on_rank_0([&] { text = is_there(path) ? kIsThere + read_file(path) : ""; });
  });
  text = group_.of_rank_0(text);
  return text.empty() ? std::nullopt : std::optional(text.substr(1));
}

// Each part of the state is taken together with what it counts.
void Checkpoints::take_state(const checkpoint::LoadedCheckpoint& from,
                             const std::vector<ParameterSpec>& specs, TrainingState& state) {
  const std::string path = fmt::format("{}/{}", from.path, kStateName);
  const std::optional<std::string> text = text_of(path);
  if (!text) fail<FileError>("checkpoint", "{} is not there: the checkpoint is not one of a run", path);
  const TrainingState saved = parse_training_state(*text, path);
  warn_of_other_batches(saved.sequences_per_step, from.manifest.world_size);
  state.branch = saved.branch;
  state.threads = saved.threads;
  state.computes_with = saved.computes_with;
  state.sequences_per_step = saved.sequences_per_step;
  if (!excludes("train_state")) {
    state.step = saved.step;
    state.tokens_seen = saved.tokens_seen;
    state.skipped_steps = saved.skipped_steps;
    state.consecutive_skips = saved.consecutive_skips;
    state.skipped_spikes = saved.skipped_spikes;
  }
  if (!excludes("lr_scheduler")) state.schedule_step = saved.schedule_step;
  if (!excludes("optimizer")) {
    state.optimizer_step = saved.optimizer_step;
    state.moments_begun = moments_begun(saved, from.manifest, specs);
    state.spikes = saved.spikes;
    if (state.loss_scale && saved.loss_scale) state.loss_scale = saved.loss_scale;
  }
  if (!excludes("dataloader")) {
    state.data_position = saved.data_position;
    state.data_fingerprint = saved.data_fingerprint;
    state.data_versions = saved.data_versions;
    state.mixture = saved.mixture;
  }
}

void Checkpoints::take_history(const std::string& folder, TrainingEngine& engine) {
  const std::string path = fmt::format("{}/{}", folder, kHistoryName);
  if (excludes("float8_history")) return;
  const bool has_one = engine.float8() && engine.float8()->history();
  if (const std::optional<std::string> text = text_of(path))
    return restore_float8_history(*text, path, engine, stream_);
  if (has_one)
    log::info(
        "{} has no amax history, so a new one begins; until it is full, each tensor is scaled by its own "
        "amax",
        folder);
}

}  // namespace ottava
