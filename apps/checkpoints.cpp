#include "apps/checkpoints.h"

#include <filesystem>

#include "core/cuda/runtime.h"
#include "core/io/file.h"
#include "core/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/loader.h"

namespace ottava {
namespace {

constexpr const char* kStateName = "training_state.json";

checkpoint::ShardMemory memory_of(const Tensor& tensor) { return {tensor.dtype, tensor.data}; }

std::string checkpoint_folder(const Config& c) { return (std::filesystem::path(c.job.dump_folder) / c.checkpoint.folder).string(); }

bool excludes(const CheckpointConfig& c, std::string_view what) {
  return std::find(c.exclude_from_loading.begin(), c.exclude_from_loading.end(), what) != c.exclude_from_loading.end();
}

}  // namespace

checkpoint::TrainedParameters trained_parameters(Fsdp& parameters, Stream& stream, bool with_optimizer) {
  checkpoint::TrainedParameters out{.specs = parameters.specs(), .at = parameters.coordinates(), .shards = {}, .with_optimizer = with_optimizer};
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
    : experiment_(experiment), stream_(stream), group_(*ranks.world), folder_(checkpoint_folder(experiment.config)) {
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
  if (!c.enable) return 0;
  std::vector<checkpoint::SavedStep> steps = checkpoint::list_steps(folder_);
  if (c.load_step >= 0) std::erase_if(steps, [&](const auto& s) { return s.step != c.load_step; });
  if (steps.empty()) return 0;
  try {  // only a hint for reading ahead: whatever is wrong is said when it is loaded
    const std::string path = steps.back().path + "/" + kStateName;
    return parse_training_state(read_file(path), path).data_position;
  } catch (const Error&) {
    return 0;
  }
}

bool Checkpoints::load(TrainingEngine& engine, TrainingState& state) {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  if (c.enable) {
    const bool with_optimizer = !excludes(c, "optimizer");
    std::optional<checkpoint::LoadedCheckpoint> loaded = checkpoint::load_newest(
        folder_, trained_parameters(engine.parameters(), stream_, with_optimizer), group_, c.load_step);
    if (loaded) {
      const std::string path = loaded->path + "/" + kStateName;
      TrainingState saved = parse_training_state(read_file(path), path);
      if (!excludes(c, "train_state")) state = saved;
      if (excludes(c, "dataloader")) state.data_position = 0;
      if (excludes(c, "lr_scheduler")) state.step = 0;
      engine.parameters().refresh_compute_copies();
      log::info("Loaded checkpoint {} (step {}, {} tokens seen)", loaded->path, saved.step, saved.tokens_seen);
      return true;
    }
  }
  return false;
}

bool Checkpoints::is_due(int64_t step, bool is_last) const {
  const CheckpointConfig& c = experiment_.config.checkpoint;
  if (!saver_) return false;
  return is_last || step % c.interval == 0 || (step == 1 && c.enable_first_step_checkpoint);
}

checkpoint::Checkpoint Checkpoints::contents(TrainingEngine& engine, const TrainingState& state, bool model_only) const {
  checkpoint::Checkpoint out{.step = state.step, .parameters = trained_parameters(engine.parameters(), stream_, !model_only), .texts = {}, .copies = {}};
  out.texts = {{"ottava_config.yaml", print_config(experiment_.config)},
               {"decisions.json", "{}\n"},
               {kStateName, to_json(state)}};
  if (experiment_.tokenizer) {
    for (const std::filesystem::path& file : experiment_.tokenizer->files()) out.copies.push_back({file.filename().string(), file.string()});
  }
  return out;
}

void Checkpoints::save(TrainingEngine& engine, const TrainingState& state, bool is_last) {
  if (!saver_) return;
  const CheckpointConfig& c = experiment_.config.checkpoint;
  checkpoint::Checkpoint now = contents(engine, state, is_last && c.last_save_model_only);
  log::info("Saving the checkpoint of step {}{}", state.step, c.async_mode == CheckpointConfig::Async::disabled ? "" : " (in the background)");
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
