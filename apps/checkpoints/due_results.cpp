#include "apps/checkpoints/due_results.h"

#include "core/error.h"
#include "core/io/attempts.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/json.h"
#include "core/io/last_lines.h"

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

namespace {

// Of results that are due after a step, those that the file of metrics does not have. Steps ascend, so that
// the end of the file is enough, however long the run is.
std::vector<std::string> not_in(const std::string& path, int64_t step, std::vector<std::string> due) {
  if (!is_there(path)) return due;
  const File file = File::open_for_reading(path);
  for (LastLines lines(file); !due.empty() && lines.next();) {
    try {
      const Json values = Json::parse(lines.text(), path);
      const int64_t of = values.at("step", path).as_integer(path);
      if (of < step) break;
      if (of == step)
        std::erase_if(due, [&](const std::string& name) { return values.find(name) != nullptr; });
    } catch (const FileError&) {  // of a disk or a person
    }
  }
  return due;
}

}  // namespace

std::vector<std::string> results_missing(const Config& c, int64_t step) {
  if (!c.metrics.enable_json_lines || c.checkpoint.load_only) return {};
  const std::vector<std::string> due = results_due(c, step);
  if (due.empty()) return due;
  const std::string path = c.job.in_dump_folder("metrics.jsonl");
  return in_three_attempts({.complaint = fmt::format("{} could not be read", path)},
                           [&] { return not_in(path, step, due); });
}

}  // namespace ottava
