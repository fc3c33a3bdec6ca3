#include "apps/train/checkpoints.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "apps/train/float8_history.h"
#include "core/cuda/runtime.h"
#include "core/io/file.h"
#include "core/log.h"
#include "models/llama/read_hf_config.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/huggingface.h"
#include "parallel/checkpoint/loader.h"
#include "parallel/sharding/repeated_weights.h"

namespace ottava {
namespace {

constexpr const char *kStateName = "training_state.json", *kHistoryName = "float8_history.json";

checkpoint::ShardMemory memory_of(const Tensor& tensor) { return {tensor.dtype, tensor.data}; }

std::string checkpoint_folder(const Config& c) {
  return (std::filesystem::path(c.job.dump_folder) / c.checkpoint.folder).string();
}

bool excludes(const CheckpointConfig& c, std::string_view what) {
  return std::find(c.exclude_from_loading.begin(), c.exclude_from_loading.end(), what) !=
         c.exclude_from_loading.end();
}

}  // namespace

checkpoint::TrainedParameters trained_parameters(Fsdp& parameters, Stream& stream, bool with_optimizer) {
  checkpoint::TrainedParameters out{.specs = parameters.specs(),
                                    .at = parameters.coordinates(),
                                    .shards = {},
                                    .with_optimizer = with_optimizer};
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    const ParameterShard& s = parameters.shard(static_cast<int>(p));
    out.shards.push_back({memory_of(s.master), memory_of(s.exp_avg), memory_of(s.exp_avg_sq)});
  }
  if (stream.type() == DeviceType::cuda) {
    out.copy = [&stream](void* to, const void* from, size_t bytes) {
      cuda::copy(to, from, bytes, stream.native());
      stream.synchronize();
    };
  }
  return out;
}

Checkpoints::Checkpoints(const Experiment& experiment, RankGroups& ranks, Stream& stream)
    : experiment_(experiment),
      stream_(stream),
      group_(*ranks.control),
      folder_(checkpoint_folder(experiment.config)) {
  const CheckpointConfig& c = experiment.config.checkpoint;
  if (!c.enable || c.load_only) return;
  checkpoint::check_shared_folder(folder_, group_);
  group_.on_rank_0([&] { checkpoint::remove_leftovers(folder_); });
  saver_ = std::make_unique<checkpoint::CheckpointSaver>(
      checkpoint::SaveOptions{.folder = folder_, .keep_latest_k = static_cast<int>(c.keep_latest_k)}, group_);
}

Checkpoints::~Checkpoints() = default;

int64_t Checkpoints::data_position_to_load() const {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  if (excludes(c, "dataloader")) return 0;
  std::vector<checkpoint::SavedStep> steps;
  if (c.enable) steps = checkpoint::list_steps(folder_);
  if (c.load_step >= 0) std::erase_if(steps, [&](const auto& s) { return s.step != c.load_step; });
  if (steps.empty() && (c.initial_load_model_only || !c.initial_load_path)) return 0;
  try {  // only a hint for reading ahead: whatever is wrong is said when it is loaded
    const std::string path = (steps.empty() ? *c.initial_load_path : steps.back().path) + "/" + kStateName;
    return parse_training_state(read_file(path), path).data_position;
  } catch (const Error&) {
    return 0;
  }
}

void Checkpoints::load(TrainingEngine& engine, TrainingState& state) {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  const bool with_optimizer = !excludes(c, "optimizer");
  auto initialise = [&] {
    const auto seed = static_cast<uint64_t>(experiment_.config.training.seed);
    if (experiment_.repeats_initial_weights)
      return initialise_by_repetition(stream_, engine.parameters(), seed);
    engine.parameters().initialise(seed);
  };
  if (!with_optimizer) initialise();
  std::optional<checkpoint::LoadedCheckpoint> loaded;
  if (c.enable) {
    loaded = checkpoint::load_newest(
        folder_, trained_parameters(engine.parameters(), stream_, with_optimizer), group_, c.load_step);
  }
  if (loaded) {
    take_state(loaded->path, state);
    take_history(loaded->path, engine);
    log::info("Loaded checkpoint {} ({} tokens seen)", loaded->path, state.tokens_seen);
  } else {
    if (!c.initial_load_path || c.initial_load_model_only) initialise();
    if (!c.initial_load_path) return;
    load_initial(
        find_input(experiment_.config, "checkpoint.initial_load_path", *c.initial_load_path).string(), engine,
        state);
  }
  engine.parameters().refresh_compute_copies();
}

void Checkpoints::load_initial(const std::string& path, TrainingEngine& engine, TrainingState& state) {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  if (!c.initial_load_model_only) {
    checkpoint::load_checkpoint(
        path, trained_parameters(engine.parameters(), stream_, !excludes(c, "optimizer")), group_);
    take_state(path, state);
    take_history(path, engine);
    log::info("Loaded {} to go on after step {}", path, state.step);
    return;
  }
  checkpoint::HuggingFaceLoad loaded =
      checkpoint::load_huggingface(path, trained_parameters(engine.parameters(), stream_, false), group_);
  log::info("Loaded the weights of {} ({})", path, fmt::join(loaded.stored_types, ", "));
  if (!loaded.ignored.empty()) log::info("Of no use here: {}", fmt::join(loaded.ignored, ", "));
}

// Each part of the state goes with what it counts.
void Checkpoints::take_state(const std::string& folder, TrainingState& state) const {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  const std::string path = folder + "/" + kStateName;
  const TrainingState saved = parse_training_state(read_file(path), path);
  if (!excludes(c, "train_state")) {
    state.step = saved.step;
    state.tokens_seen = saved.tokens_seen;
    state.skipped_steps = saved.skipped_steps;
    state.consecutive_skips = saved.consecutive_skips;
  }
  if (!excludes(c, "lr_scheduler")) state.schedule_step = saved.schedule_step;
  if (!excludes(c, "optimizer")) {
    state.optimizer_step = saved.optimizer_step;
    if (state.loss_scale && saved.loss_scale) state.loss_scale = saved.loss_scale;
  }
  if (!excludes(c, "dataloader")) {
    state.data_position = saved.data_position;
    state.data_fingerprint = saved.data_fingerprint;
  }
}

void Checkpoints::take_history(const std::string& folder, TrainingEngine& engine) const {
  const std::string path = folder + "/" + kHistoryName;
  if (excludes(experiment_.config.checkpoint, "float8_history")) return;
  const bool has_one = engine.float8() && engine.float8()->history();
  if (std::filesystem::exists(path)) return restore_float8_history(read_file(path), path, engine, stream_);
  if (has_one) log::info("{} has no amax history: one begins, with current scaling until it is full", folder);
}

bool Checkpoints::is_due(int64_t step, bool is_last) const {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  if (!saver_) return false;
  return is_last || step % c.interval == 0 || (step == 1 && c.enable_first_step_checkpoint);
}

HfConfig Checkpoints::hf_config(DType stored) const {
  const Config& c = experiment_.config;
  const LlamaConfig& model = experiment_.shape.model;
  // Scaled frequencies are made for sequences up to factor times the original length.
  const std::optional<RopeScaling>& scaling = model.rope_scaling;
  const int64_t made_for =
      scaling ? static_cast<int64_t>(scaling->factor * scaling->original_max_position_embeddings)
              : c.training.seq_len;
  HfConfig hf = hf_config_of(model, c.model.max_seq_len.value_or(std::max(made_for, c.training.seq_len)));
  hf.dtype = stored == DType::bf16 ? "bfloat16" : stored == DType::f16 ? "float16" : "float32";
  if (experiment_.tokenizer) {
    hf.bos_token_id = experiment_.tokenizer->bos_id();
    if (auto eos = experiment_.tokenizer->eos_id()) hf.eos_token_ids = {*eos};
  }
  return hf;
}

checkpoint::Checkpoint Checkpoints::contents(TrainingEngine& engine, const TrainingState& state,
                                             bool model_only) const {
  checkpoint::Checkpoint out{.step = state.step,
                             .parameters = trained_parameters(engine.parameters(), stream_, !model_only),
                             .texts = {},
                             .copies = {}};
  const Config& c = experiment_.config;
  if (model_only) out.export_dtype = c.checkpoint.export_dtype;
  out.texts = {{"config.json", to_json(hf_config(model_only ? c.checkpoint.export_dtype : DType::f32))},
               {"ottava_config.yaml", print_config(c)},
               {"decisions.json", to_json(experiment_.decisions)},
               {kStateName, to_json(state)}};
  if (std::string history = model_only ? "" : float8_history_json(engine, stream_); !history.empty()) {
    out.texts.push_back({kHistoryName, std::move(history)});
  }
  if (experiment_.tokenizer) {
    for (const std::filesystem::path& file : experiment_.tokenizer->files())
      out.copies.push_back({file.filename().string(), file.string()});
  }
  return out;
}

void Checkpoints::save(TrainingEngine& engine, const TrainingState& state, bool is_last) {
  if (!saver_) return;
  const CheckpointConfig& c = experiment_.config.checkpoint;
  checkpoint::Checkpoint now = contents(engine, state, is_last && c.last_save_model_only);
  log::info("Saving the checkpoint of step {}{}", state.step,
            c.async_mode == CheckpointConfig::Async::disabled ? "" : " (in the background)");
  if (is_last || c.async_mode == CheckpointConfig::Async::disabled) {
    saver_->save(now);
  } else {
    saver_->begin(now);
  }
}

void Checkpoints::poll() {
  if (saver_ && saver_->in_flight()) saver_->poll();
}

void Checkpoints::finish() {
  if (saver_) saver_->finish();
}

}  // namespace ottava
