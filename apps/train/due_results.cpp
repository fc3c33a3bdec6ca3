#include "apps/train/due_results.h"

#include <filesystem>
#include <limits>
#include <set>

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

std::vector<std::string> results_missing(const Config& c, int64_t step) {
  if (!c.metrics.enable_json_lines || c.checkpoint.load_only) return {};
  std::vector<std::string> due = results_due(c, step);
  const std::string path = c.job.in_dump_folder("metrics.jsonl");
  if (due.empty() || !std::filesystem::exists(path)) return due;
  const std::string text = read_file(path, std::numeric_limits<int64_t>::max());
  for (const std::string_view line : split_text(text, '\n')) {
    try {
      const Json values = Json::parse(line, path);
      if (values.at("step", path).as_integer(path) == step)
        std::erase_if(due, [&](const std::string& name) { return values.find(name) != nullptr; });
    } catch (const FileError&) {  // a torn line
    }
  }
  return due;
}

}  // namespace ottava
