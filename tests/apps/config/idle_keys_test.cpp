#include "apps/config/idle_keys.h"

#include <algorithm>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"

using namespace ottava;
using ottava::test::config_of_text;
using Notes = std::vector<std::string>;

namespace {

Notes idle(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return idle_keys(config_of_text(yaml, "f.yaml", overrides));
}

}  // namespace

TEST_CASE("keys that another key switches off are named with it, and with it on they are not") {
  struct Row {
    std::vector<std::string> keys, on;
    std::string note;
  };
  const std::vector<Row> rows{
      {{"--validation.freq", "5"},
       {"--validation.enable", "true"},
       "validation.enable is false, so validation.freq has no effect"},
      {{"--evaluation.freq", "5", "--evaluation.temperature", "1"},
       {"--evaluation.enable", "true", "--evaluation.prompts", "[a]"},
       "evaluation.enable is false, so evaluation.freq, evaluation.temperature have no effect"},
      {{"--checkpoint.interval", "5"},
       {"--checkpoint.enable", "true"},
       "checkpoint.enable is false, so checkpoint.interval has no effect"},
      {{"--profiling.profile_freq", "20"},
       {"--profiling.enable_profiling", "true"},
       "profiling.enable_profiling is false, so profiling.profile_freq has no effect"},
      {{"--metrics.save_tb_folder", "here"},
       {"--metrics.enable_tensorboard", "true"},
       "metrics.enable_tensorboard is false, so metrics.save_tb_folder has no effect"},
      {{"--optimizer.momentum", "0.9", "--optimizer.ns_steps", "6"},
       {"--optimizer.name", "Muon"},
       "no optimizer is Muon, so optimizer.momentum, optimizer.ns_steps have no effect"},
      {{"--parallelism.pipeline_parallel_schedule", "GPipe"},
       {"--parallelism.pipeline_parallel_degree", "2"},
       "parallelism.pipeline_parallel_degree is 1, so parallelism.pipeline_parallel_schedule has no effect"},
      {{"--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_layers_per_stage",
        "2", "--parallelism.pipeline_parallel_last_stage_less_layers", "0",
        "--parallelism.pipeline_parallel_split_points", "[layers.2]"},
       {"--parallelism.pipeline_parallel_split_points", "[]"},
       "parallelism.pipeline_parallel_split_points says where stages begin, so "
       "parallelism.pipeline_parallel_layers_per_stage, "
       "parallelism.pipeline_parallel_last_stage_less_layers have no effect"},
      {{"--parallelism.disable_loss_parallel", "true"},
       {"--parallelism.tensor_parallel_degree", "2"},
       "parallelism.tensor_parallel_degree is 1, so parallelism.disable_loss_parallel has no effect"},
      {{"--activation_checkpoint.selective_ac_option", "op", "--activation_checkpoint.mode", "full"},
       {"--activation_checkpoint.mode", "selective"},
       "activation_checkpoint.mode is not selective, so activation_checkpoint.selective_ac_option has no "
       "effect"},
      {{"--training.skip_spikes.window", "64"},
       {"--training.skip_spikes.sigma", "6"},
       "training.skip_spikes.sigma is 0, so training.skip_spikes.window has no effect"},
      {{"--training.steps", "3", "--training.epochs", "0.5"},
       {"--training.epochs", "null"},
       "training.epochs is set, so training.steps has no effect"},
      {{"--comm.trace_buf_size", "0", "--comm.save_traces_folder", "here"},
       {"--comm.trace_buf_size", "100"},
       "comm.trace_buf_size is 0, so comm.save_traces_folder has no effect"},
      {{"--evaluation.enable", "true", "--evaluation.prompts", "[a]", "--evaluation.max_examples", "5"},
       {"--evaluation.tasks", "[{name: items, path: items.jsonl}]"},
       "evaluation.tasks is empty, so evaluation.max_examples has no effect"},
      {{"--evaluation.enable", "true", "--evaluation.tasks", "[{name: items, path: items.jsonl}]",
        "--evaluation.max_new_tokens", "5", "--evaluation.temperature", "1"},
       {"--evaluation.prompts", "[a]"},
       "evaluation.prompts is empty, so evaluation.max_new_tokens, evaluation.temperature have no effect"},
      {{"--lr_scheduler.decay_ratio", "0", "--lr_scheduler.decay_type", "cosine",
        "--lr_scheduler.min_lr_factor", "0.1"},
       {"--lr_scheduler.decay_ratio", "0.5"},
       "lr_scheduler.decay_ratio is 0, so lr_scheduler.decay_type, lr_scheduler.min_lr_factor have no "
       "effect"},
      {{"--chat.system", "be brief"},
       {"--training.format", "messages"},
       "no conversations are read, so chat.system has no effect"},
  };
  for (const Row& row : rows) {
    std::vector<std::string> keys = row.keys;
    CHECK(idle("", keys) == Notes{row.note});
    keys.insert(keys.end(), row.on.begin(), row.on.end());
    CHECK(idle("", keys) == Notes{});
  }
}

TEST_CASE("keys at their defaults are not named, and the notes of a configuration hold those that are") {
  CHECK(idle("validation: {freq: 10, seq_len: 2048}") == Notes{});
  const Config c = config_of_text("checkpoint: {interval: 5}\nvalidation: {seq_len: 64}", "f.yaml");
  CHECK(idle_keys(c).size() == 2);
  for (const std::string& note : idle_keys(c)) CHECK(std::ranges::count(c.provenance.notes, note) == 1);
}

TEST_CASE("keys that do something although their section is switched off are not named") {
  CHECK(idle("", {"--checkpoint.initial_load_path", "run", "--checkpoint.initial_load_model_only",
                  "false"}) == Notes{});
  std::vector<std::string> keys{
      "--validation.local_batch_size", "2", "--validation.seq_len", "64", "--validation.freq", "5"};
  CHECK(idle("", keys) == Notes{"validation.enable is false, so validation.local_batch_size, "
                                "validation.seq_len, validation.freq have no effect"});
  keys.insert(keys.end(),
              {"--evaluation.enable", "true", "--evaluation.tasks", "[{name: a, path: questions.jsonl}]"});
  CHECK(idle("", keys) == Notes{"validation.enable is false, so validation.freq has no effect"});
}

TEST_CASE("no shipped configuration has keys that change nothing") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(OTTAVA_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    INFO(entry.path());
    CHECK(idle_keys(load_config(entry.path())) == Notes{});
    ++files;
  }
  CHECK(files > 10);
}
