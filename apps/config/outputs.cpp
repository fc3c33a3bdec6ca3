#include "apps/config/outputs.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/contains.h"

namespace ottava {
namespace fs = std::filesystem;
namespace {

enum class Kind { file, folder };

struct Output {
  Kind kind = Kind::file;
  fs::path path;
  std::string what;                  ///< "the metrics"
  std::string key = {}, value = {};  ///< which names it, and how; empty for a name of our own
};

bool is_in(const fs::path& path, const fs::path& folder) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

/// Whether both can be written: only folders may be the same or contain each other, and a folder a file.
bool can_both_be(const Output& a, const Output& b) {
  if (a.kind == Kind::file && is_in(b.path, a.path)) return false;
  return !(b.kind == Kind::file && is_in(a.path, b.path));
}

bool is_metrics_of_a_rank(std::string_view name) {
  return name.starts_with("metrics.rank") && name.ends_with(".jsonl");
}

/// The file metrics.rank3.jsonl of the folder, if `path` is that or in it: how many ranks there are is not
/// known here.
fs::path file_of_a_rank(const fs::path& folder, const fs::path& path) {
  const fs::path inside = path.lexically_relative(folder);
  const std::string first = inside.empty() ? std::string() : inside.begin()->string();
  return is_metrics_of_a_rank(first) ? folder / first : fs::path();
}

enum class Starts { this_one, any };

// What this start writes, or what any start with these names may have written.
std::vector<Output> outputs_of(const Config& c, Starts starts = Starts::this_one) {
  const bool is_any = starts == Starts::any;
  std::vector<Output> all;
  const auto add = [&](Kind kind, const std::string& name, std::string what, std::string key = {}) {
    fs::path path = fs::path(c.job.in_dump_folder(name)).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // "checkpoint/"
    all.push_back({kind, std::move(path), std::move(what), std::move(key), name});
  };
  add(Kind::file, ".lock", "its lock");
  add(Kind::file, "decisions.json", "its decisions");
  add(Kind::folder, "data_index", "indexes of its data");
  if (is_any || c.metrics.enable_json_lines) {
    add(Kind::file, "metrics.jsonl", "its metrics");
    add(Kind::file, "events.jsonl", "its events");
  }
  if (is_any || c.checkpoint.load_only) add(Kind::folder, "load_only", "metrics and events of this start");
  if (is_any || c.checkpoint.enable)
    add(Kind::folder, c.checkpoint.folder, "its checkpoints", "checkpoint.folder");
  if (is_any || c.profiling.enable_profiling)
    add(Kind::folder, c.profiling.save_traces_folder, "its traces", "profiling.save_traces_folder");
  if (is_any || c.metrics.enable_tensorboard)
    add(Kind::folder, c.metrics.save_tb_folder, "events for TensorBoard", "metrics.save_tb_folder");
  if (is_any || c.comm.trace_buf_size > 0)
    add(Kind::folder, c.comm.save_traces_folder, "the last calls of its ranks", "comm.save_traces_folder");
  if (!c.job.save_config_file.value_or("").empty())
    add(Kind::file, *c.job.save_config_file, "its configuration", "job.save_config_file");
  return all;
}

/// Nothing here expands what a shell does, and a folder named ~ is hard to remove.
void check_expanded(const std::string& key, const std::string& path, config::Problems& problems) {
  const size_t dollar = path.find('$');
  const bool has_variable = dollar != std::string::npos && dollar + 1 < path.size() &&
                            (path[dollar + 1] == '{' || path[dollar + 1] == '_' ||
                             std::isalpha(static_cast<unsigned char>(path[dollar + 1])) != 0);
  if (!path.starts_with('~') && !has_variable) return;
  problems.add(
      key,
      "\"{}\" is not expanded: a shell expands ~ only at the beginning of a word, and variables only "
      "on its command line; write the path out",
      path);
}

}  // namespace

void check_outputs(const Config& config, config::Problems& problems) {
  if (config.job.dump_folder.empty())
    problems.add("job.dump_folder", "\"\" is no folder; expected a path, or . for the working directory");
  if (config.job.save_config_file && config.job.save_config_file->empty())
    problems.add("job.save_config_file", "\"\" is no file; expected a path, or null to write none");
  if (config.training.gemm_cache.empty())
    problems.add("training.gemm_cache", "\"\" is no folder; expected a path, auto, or off to keep none");
  check_expanded("job.dump_folder", config.job.dump_folder, problems);
  check_expanded("training.gemm_cache", config.training.gemm_cache, problems);
  std::vector<Output> all = outputs_of(config);
  for (const Output& o : all) check_expanded(o.key, o.value, problems);
  if (config.metrics.enable_json_lines && config.metrics.save_for_all_ranks) {
    const fs::path folder = all.front().path.parent_path();
    std::vector<Output> of_ranks;
    for (const Output& o : all)
      if (fs::path file = file_of_a_rank(folder, o.path); !file.empty())
        of_ranks.push_back({Kind::file, std::move(file), "the metrics of a rank"});
    all.insert(all.begin(), of_ranks.begin(), of_ranks.end());
  }
  for (auto later = all.begin(); later != all.end(); ++later) {
    if (later->key.empty()) continue;
    const auto other =
        std::find_if(all.begin(), later, [&](const Output& o) { return !can_both_be(o, *later); });
    if (other == later) continue;
    problems.add(later->key, "\"{}\" is taken: the run writes {} to {}{}; choose another name", later->value,
                 other->what, other->path.string(),
                 other->key.empty() ? "" : fmt::format(" ({})", other->key));
  }
}

bool is_file_of_run(const fs::path& file) {
  constexpr std::string_view kOfRun[] = {".lock", "decisions.json", "metrics.jsonl", "events.jsonl"},
                             kOfCheckpoint[] = {
                                 "config.json",           "decisions.json",     "generation_config.json",
                                 "manifest.json",         "ottava_config.yaml", "tokenizer.json",
                                 "tokenizer_config.json", "training_state.json"};
  const fs::path folder = file.parent_path();
  const std::string name = file.filename().string();
  const auto has = [&](const char* other) {
    std::error_code none;  // what cannot be looked at is named when it is written to
    return fs::exists(folder / other, none);
  };
  if (contains(kOfRun, name) || is_metrics_of_a_rank(name)) {
    if (has(".lock") || has("metrics.jsonl")) return true;
  }
  if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return has(name.c_str());
  const bool is_checkpoint =
      has("training_state.json") || has("model.safetensors") || has("model.safetensors.index.json");
  return is_checkpoint && contains(kOfCheckpoint, name) && has(name.c_str());
}

std::function<bool(const fs::path& path)> own_outputs(const Config& config) {
  // Of paths whose names are alike; others need no look.
  const auto are_same = [](const fs::path& a, const fs::path& b) {
    std::error_code none;  // then it is not here
    const fs::path full = fs::weakly_canonical(a, none);
    return !full.empty() && full == fs::weakly_canonical(b, none);
  };
  return [=, folder = fs::path(config.job.dump_folder),
          own = outputs_of(config, Starts::any)](const fs::path& path) {
    const fs::path name = path.filename();
    if (is_metrics_of_a_rank(name.string())) return are_same(path.parent_path(), folder);
    return std::ranges::any_of(own, [&](const Output& o) {
      return o.path.filename() == name && !are_same(o.path, folder) && are_same(path, o.path);
    });
  };
}

std::vector<std::string> output_folders(const Config& config) {
  std::vector<std::string> folders;
  for (const Output& o : outputs_of(config)) {
    const fs::path folder = o.kind == Kind::folder ? o.path : o.path.parent_path();
    folders.push_back(folder.empty() ? "." : folder.string());
  }
  std::ranges::sort(folders);
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  if (!config.profiling.enable_profiling) return folders;
  std::error_code error;  // what cannot be listed is named when it is written to
  const std::string traces = config.job.in_dump_folder(config.profiling.save_traces_folder);
  for (fs::directory_iterator it(traces, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with("iteration_")) folders.push_back(it->path().string());
  return folders;
}

}  // namespace ottava
