#include "apps/checkpoints/due_results.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/split.h"

namespace ottava {

std::string validation_result(std::string_view set) {
  return fmt::format("validation_metrics{}{}/loss", set.empty() ? "" : "/", set);
}

std::string evaluation_result(std::string_view task) {
  return fmt::format("evaluation_metrics/{}/acc", task);
}

std::vector<std::string> results_due(const Config& c, int64_t step) {
  std::vector<std::string> out;
  if (c.validation.enable && (step == 1 || step % c.validation.freq == 0)) {
    for (const ValidationSetConfig& set : c.validation.datasets) out.push_back(validation_result(set.name));
    if (out.empty()) out.push_back(validation_result(""));
  }
  const EvaluationConfig& e = c.evaluation;
  if (e.enable && (step == 1 || step % e.freq == 0 || step == c.training.steps)) {
    for (const NamedFilesConfig& task : e.tasks) out.push_back(evaluation_result(task.name));
    if (!e.prompts.empty()) out.emplace_back(kSamplesResult);
  }
  return out;
}

// Steps ascend, so that the end of the file is enough, however long the run is.
std::vector<std::string> results_missing(const Config& c, int64_t step) {
  if (!c.metrics.enable_json_lines || c.checkpoint.load_only) return {};
  std::vector<std::string> due = results_due(c, step);
  const std::string path = c.job.in_dump_folder("metrics.jsonl");
  if (due.empty() || !std::filesystem::exists(path)) return due;
  const File file = File::open_for_reading(path);
  bool is_all = false;
  for (int64_t bytes = int64_t{1} << 16; !is_all && !due.empty(); bytes *= 4) {
    const int64_t begin = std::max<int64_t>(file.size() - bytes, 0);
    std::string text(file.size() - begin, '\0');
    file.read_at(text.data(), text.size(), begin);
    is_all = begin == 0;
    for (const std::string_view line : split_text(text, '\n')) {
      try {
        const Json values = Json::parse(line, path);
        const int64_t of = values.at("step", path).as_integer(path);
        if (of < step) is_all = true;
        if (of == step)
          std::erase_if(due, [&](const std::string& name) { return values.find(name) != nullptr; });
      } catch (const FileError&) {  // a torn line, or one whose beginning was not read
      }
    }
  }
  return due;
}

}  // namespace ottava
