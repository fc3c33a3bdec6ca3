#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/config_of_text.h"
#include "tests/support/message_of.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

TEST_CASE("values whose sums or products 64 bits cannot hold are refused", "[config]") {
  const auto message = [](const std::string& yaml) { return message_of([&] { config_of_text(yaml); }); };
  for (const char* key : {"first_stage_less_layers", "last_stage_less_layers", "layers_per_stage"}) {
    CHECK_THAT(message(fmt::format("parallelism: {{pipeline_parallel_{}: 9223372036854775807}}", key)),
               Contains(" and <= 65536, got"));
  }
  CHECK_THAT(message("parallelism: {pipeline_parallel_microbatch_size: 9223372036854775807}"),
             Contains("expected an integer >= 1 and <= 1073741824, got"));
  for (const char* key : {"profiler_active", "profiler_warmup"}) {
    CHECK_THAT(message(fmt::format("profiling: {{{}: 9223372036854775807}}", key)),
               Contains(" and <= 1073741824, got"));
  }
  CHECK_THAT(message("profiling: {profiler_active: 1073741824, profiler_warmup: 1073741824}"),
             Contains("10 is less than profiler_warmup 1073741824 + profiler_active 1073741824"));
  for (const char* key :
       {"training: {steps", "evaluation: {max_new_tokens", "checkpoint: {advance_data_steps"}) {
    CHECK_THAT(message(fmt::format("{}: 9223372036854775807}}", key)), Contains(" and <= 1073741824, got"));
    CHECK_THAT(message(fmt::format("{}: 1073741825}}", key)), Contains(" and <= 1073741824, got"));
  }
  CHECK_THAT(message("training: {mixture: [{name: a, path: a, weight: 1}], mixture_stages: [{from_step: "
                     "9223372036854775807, weights: [1]}]}"),
             Contains("from_step: expected an integer >= 2 and <= 1073741824, got"));
  CHECK(message("training: {steps: 1073741824}") == "no error");
  for (const char* section : {"training", "validation"}) {
    CHECK_THAT(
        message(fmt::format("{}: {{local_batch_size: 1073741824, seq_len: 1073741824}}", section)),
        Contains(fmt::format("{}.local_batch_size: 1073741824 x seq_len 1073741824 = 1152921504606846976 "
                             "tokens; expected at most 1073741824",
                             section)));
    CHECK(message(fmt::format("{}: {{local_batch_size: 32768, seq_len: 32768}}", section)) == "no error");
  }
}

namespace {

/// Keys of the schema below `schema`, each with numbers of its range: the ends and what is beside them.
void collect_ends(const nlohmann::json& schema, const std::string& path,
                  std::vector<std::pair<std::string, std::string>>& ends) {
  for (const auto& [name, key] : schema["properties"].items()) {
    const std::string here = path.empty() ? name : path + "." + name;
    if (key.contains("properties")) collect_ends(key, here, ends);
    const bool has_values = key.contains("anyOf") && key["anyOf"][1].contains("const");
    const nlohmann::json& range = has_values ? key["anyOf"][0] : key;
    if (!range.contains("minimum") && !range.contains("exclusiveMinimum")) continue;
    if (key["type"][0] == "integer") {
      const auto least = range["minimum"].get<int64_t>();
      const int64_t most = range.value("maximum", int64_t{1} << 62);
      for (const int64_t n : {least, least + 1, most}) ends.emplace_back(here, std::to_string(n));
      if (has_values) ends.emplace_back(here, std::to_string(key["anyOf"][1]["const"].get<int64_t>()));
    } else {
      for (const double x : {range.value("minimum", 1e-300), range.value("maximum", 1e300)})
        ends.emplace_back(here, fmt::format("{}", x));
    }
  }
}

}  // namespace

TEST_CASE("what is shown as the range of a key is accepted, unless another key forbids it", "[config]") {
  std::vector<std::pair<std::string, std::string>> ends;
  collect_ends(nlohmann::json::parse(config_schema()), "", ends);
  CHECK(ends.size() > 100);
  // What the message names, where the key alone is set to the end of its range.
  const std::vector<std::pair<std::string, const char*>> other_keys = {
      {"model.dim", "n_heads"},
      {"model.head_dim", "as attention requires"},
      {"model.n_heads", "dim 256"},
      {"model.n_kv_heads", "n_heads"},
      {"model.max_seq_len", "training.seq_len"},
      {"training.local_batch_size", "x seq_len"},
      {"training.seq_len", "x seq_len"},
      {"training.global_batch_size", "local_batch_size"},
      {"validation.local_batch_size", "x seq_len"},
      {"validation.seq_len", "x seq_len"},
      {"checkpoint.load_step", "checkpoint.enable"},
      {"checkpoint.keep_every", "checkpoint.interval"},
      {"checkpoint.advance_data_steps", "checkpoint.load_step"},
      {"quantize.linear.float8.amax_history_length", "recipe_name"},
      {"quantize.linear.float8.margin", "recipe_name"},
      {"profiling.profile_freq", "profiler_active"},
      {"profiling.profiler_active", "profile_freq"},
      {"profiling.profiler_warmup", "profile_freq"}};
  for (const auto& [key, end] : ends) {
    const std::string message = message_of([&, &key = key, &end = end] {
      config_of_text("", "f.yaml", {"--" + key, end});
    });
    INFO(key << " " << end << ": " << message);
    const auto other = std::ranges::find(other_keys, key, &std::pair<std::string, const char*>::first);
    if (message == "no error") continue;
    CHECK(other != other_keys.end());
    if (other != other_keys.end()) CHECK_THAT(message, Contains(other->second));
  }
}

TEST_CASE("values of the model that its config.json cannot hold are refused", "[config]") {
  const auto message = [](const std::string& key, const std::string& value) {
    return message_of([&] { config_of_text(fmt::format("model: {{{}: {}}}", key, value)); });
  };
  for (const char* value : {"1e-46", "0", "1e39"})
    CHECK_THAT(message("norm_eps", value), Contains("model.norm_eps: expected a number >= 1e-30 and <= 1"));
  CHECK(message("norm_eps", "1e-12") == "no error");
  CHECK_THAT(message("ffn_dim_multiplier", "1e300"), Contains("expected a number > 0 and <= 4096, got"));
  CHECK_THAT(message("rope_scaling", "{factor: 300000}"), Contains("expected a number >= 1 and <= 65536"));
  CHECK_THAT(message("rope_scaling", "{original_max_position_embeddings: 1073741825}"),
             Contains("expected an integer >= 1 and <= 1073741824"));
}

TEST_CASE("an output that takes the name of another is refused", "[config]") {
  const auto message = [](const std::string& yaml) {
    return message_of([&] { config_of_text("job: {dump_folder: out}\n" + yaml); });
  };
  const auto taken = [](const std::string& key, const std::string& value, const std::string& by) {
    return Contains(
        fmt::format("{}: \"{}\" is taken: the run writes {}; choose another name", key, value, by));
  };
  for (const char* name : {"metrics.jsonl", "./metrics.jsonl", "metrics.jsonl/", "metrics.jsonl/deeper"}) {
    CHECK_THAT(message(fmt::format("checkpoint: {{enable: true, folder: {}}}", name)),
               taken("checkpoint.folder", name, "its metrics to out/metrics.jsonl"));
  }
  CHECK_THAT(message("profiling: {enable_profiling: true, save_traces_folder: events.jsonl}"),
             taken("profiling.save_traces_folder", "events.jsonl", "its events to out/events.jsonl"));
  CHECK_THAT(message("metrics: {enable_tensorboard: true, save_tb_folder: decisions.json}"),
             taken("metrics.save_tb_folder", "decisions.json", "its decisions to out/decisions.json"));
  CHECK_THAT(message("comm: {save_traces_folder: .lock}"),
             taken("comm.save_traces_folder", ".lock", "its lock to out/.lock"));
  const auto saved = [&](const std::string& name, const std::string& more) {
    return message_of([&] {
      config_of_text(fmt::format("job: {{dump_folder: out, save_config_file: {}}}\n{}", name, more));
    });
  };
  CHECK_THAT(saved("metrics.jsonl", ""),
             taken("job.save_config_file", "metrics.jsonl", "its metrics to out/metrics.jsonl"));
  CHECK_THAT(saved("all", "checkpoint: {enable: true, folder: all}"),
             taken("job.save_config_file", "all", "its checkpoints to out/all (checkpoint.folder)"));
  CHECK_THAT(saved("all", "checkpoint: {enable: true, folder: all/saved}"),
             taken("job.save_config_file", "all", "its checkpoints to out/all/saved (checkpoint.folder)"));

  const std::string all_ranks = "metrics: {save_for_all_ranks: true}\n";
  CHECK_THAT(message(all_ranks + "checkpoint: {enable: true, folder: metrics.rank3.jsonl/saved}"),
             taken("checkpoint.folder", "metrics.rank3.jsonl/saved",
                   "the metrics of a rank to out/metrics.rank3.jsonl"));
  CHECK_THAT(saved("metrics.rank12.jsonl", all_ranks),
             taken("job.save_config_file", "metrics.rank12.jsonl",
                   "the metrics of a rank to out/metrics.rank12.jsonl"));
  CHECK(saved("metrics.rank1.jsonl", "") == "no error");

  // What is not written takes no name; files may be in folders, and folders be the same.
  CHECK(saved("metrics.jsonl", "metrics: {enable_json_lines: false}") == "no error");
  CHECK(saved("checkpoint/all.yaml", "checkpoint: {enable: true}") == "no error");
  CHECK(message("checkpoint: {folder: metrics.jsonl}") == "no error");
  CHECK(message("checkpoint: {enable: true, folder: .}") == "no error");
  CHECK(message("checkpoint: {enable: true, folder: same}\nprofiling: {enable_profiling: true, "
                "save_traces_folder: same}") == "no error");
}

TEST_CASE("a path that only a shell would expand, or none, is refused", "[config]") {
  const auto message = [](const std::string& yaml) { return message_of([&] { config_of_text(yaml); }); };
  for (const char* path : {"~/runs", "~someone", "$HOME/runs", "runs/${USER}"}) {
    CHECK_THAT(
        message(fmt::format("job: {{dump_folder: '{}'}}", path)),
        Contains(fmt::format("job.dump_folder: \"{}\" is not expanded: a shell expands ~ only", path)) &&
            Contains("1 problem"));
  }
  CHECK_THAT(message("checkpoint: {enable: true, folder: ~/saved}"),
             Contains("checkpoint.folder: \"~/saved\" is not expanded"));
  CHECK_THAT(message("training: {gemm_cache: $SCRATCH/ottava}"),
             Contains("training.gemm_cache: \"$SCRATCH/ottava\" is not expanded"));
  CHECK_THAT(message("training: {gemm_cache: ''}"),
             Contains("training.gemm_cache: \"\" is no folder; expected a path, auto, or off"));
  CHECK(message("job: {dump_folder: 'runs/a~b$'}") == "no error");
  CHECK_THAT(message("job: {dump_folder: ''}"),
             Contains("job.dump_folder: \"\" is no folder; expected a path"));
  CHECK_THAT(
      message("job: {save_config_file: ''}"),
      Contains("job.save_config_file: \"\" is no file; expected a path, or null") && Contains("1 problem"));
}
