#include "tests/support/tiny_training.h"

#include <cstring>
#include <fstream>

#include "apps/decide/decide.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/log.h"
#include "core/threads/parallel_for.h"

namespace ottava::test {
namespace {

// A linear congruential generator in 64 bits (MMIX's constants): the same numbers from every compiler and
// library.
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : state_(seed) {}
  uint32_t below(uint32_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

}  // namespace

std::string generated_text(int documents, uint32_t seed) {
  Numbers numbers(seed);
  std::vector<std::string> words(200);
  for (std::string& word : words) {
    const uint32_t letters = 2 + numbers.below(6);
    for (uint32_t i = 0; i < letters; ++i) word += static_cast<char>('a' + numbers.below(20));
  }
  std::string text;
  for (int d = 0; d < documents; ++d) {
    const uint32_t length = 20 + numbers.below(80);
    for (uint32_t i = 0; i < length; ++i)
      text += (i > 0 ? " " : "") + words[numbers.below(numbers.below(200) + 1)];
    text += ".\n\n";
  }
  return text;
}

TinyTraining::TinyTraining() : text_(folder_ / "text.txt") {
  log::set_level(log::Level::warning);
  set_parallel_threads(1);  // nothing here is worth a second thread's wake-up
  std::ofstream(text_) << generated_text(200);
}

Overrides TinyTraining::model_and_text(const std::string& run) const {
  return model_of({.dim = 32, .layers = 2, .heads = 2, .kv_heads = 1, .ffn = 48}) +
         Overrides{"--job.dump_folder",           folder_ / run,
                   "--model.hf_assets_path",      OTTAVA_SOURCE_DIR "/configs/tokenizers/en-2256",
                   "--training.dataset_path",     text_,
                   "--training.seq_len",          "32",
                   "--training.local_batch_size", "2",
                   "--training.gemm_cache",       "off",
                   "--metrics.peak_tflops_bf16",  "1"};  // measuring the peak takes longer than all steps
}

Overrides TinyTraining::validation() const {
  return words(
             "--validation.enable true --validation.freq 2 --validation.steps 1 "
             "--validation.local_batch_size 1 --validation.seq_len 16") +
         Overrides{"--validation.dataset_path", text_};
}

Config TinyTraining::config(const std::string& run, const Overrides& overrides) const {
  const Overrides own = words(
      "--model.rope_scaling.factor 8 --training.steps 8 --training.mixed_precision_param float32 "
      "--training.dataloader.num_workers 1 --lr_scheduler.warmup_steps 2 --activation_checkpoint.mode none "
      "--metrics.log_freq 1");
  return load_config("", model_and_text(run) + own + overrides);
}

TinyTraining::Run TinyTraining::start(const std::string& run, const Overrides& overrides,
                                      const StopSignals* signals) const {
  const Config c = config(run, overrides);
  Run out{std::make_unique<RankGroups>(solo_rank_groups()), nullptr};
  out.trainer = std::make_unique<Trainer>(resolve_experiment(c, load_tokenizer(c), 1), *out.ranks,
                                          Device{DeviceType::cpu, 0}, signals);
  return out;
}

TinyTraining::Run TinyTraining::start_on(Device device, const std::string& run,
                                         const Overrides& overrides) const {
  const Config c = config(run, overrides);
  Run out{std::make_unique<RankGroups>(solo_rank_groups()), nullptr};
  Experiment experiment = resolve_experiment(c, load_tokenizer(c), 1);
  settle_decisions(experiment, *out.ranks, device, DecisionSource::checkpoint);
  out.trainer = std::make_unique<Trainer>(std::move(experiment), *out.ranks, device, nullptr);
  return out;
}

Everything everything_of(Trainer& trainer) {
  Everything out;
  Fsdp& parameters = trainer.engine().parameters();
  for (size_t p = 0; p < parameters.specs().size(); ++p) {
    const ParameterShard& s = parameters.shard(static_cast<int>(p));
    std::vector<Tensor> tensors{s.master};
    for (const MomentTraits& m : moments_of(parameters.specs()[p].rule))
      tensors.push_back(s.moments[m.moment]);
    tensors.push_back(s.compute);
    for (const Tensor& t : tensors) {
      if (t.empty()) continue;
      const auto* bytes = static_cast<const uint8_t*>(t.data);
      out.tensors.emplace_back(bytes, bytes + t.bytes());
    }
  }
  out.state = trainer.state();
  return out;
}

std::vector<Json> logged_lines(const std::string& run_folder) {
  std::vector<Json> out;
  std::ifstream file(run_folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line) && !file.eof();)
    out.push_back(Json::parse(line, "metrics.jsonl"));
  return out;
}

std::vector<double> logged(const std::string& run_folder, const std::string& name) {
  std::vector<double> out;
  for (const Json& line : logged_lines(run_folder)) {
    if (line.find(name)) out.push_back(line.at(name, "metrics.jsonl").as_number(name));
  }
  return out;
}

}  // namespace ottava::test
