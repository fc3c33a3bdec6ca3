#include "apps/report/run_events.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/log.h"
#include "parallel/pipeline/pipeline_text.h"

namespace ottava {

RunEvents::RunEvents(const std::string& folder, int64_t resumed_at) {
  require_folder("events", folder);
  path_ = (std::filesystem::path(folder) / "events.jsonl").string();
  if (resumed_at == 0 && is_there(path_)) rename_file("events", path_, unused_name(path_ + ".previous"));
  if (!is_there(path_)) File::create(path_).close();
}

void RunEvents::add(std::string_view event, int64_t step, std::string text, Json more) {
  if (path_.empty()) return;
  const std::chrono::duration<double> time = std::chrono::system_clock::now().time_since_epoch();
  Json line;
  line.set("time", std::round(time.count() * 1000) / 1000)
      .set("event", event)
      .set("step", step)
      .set("text", std::move(text));
  if (more.is_object())
    for (const auto& [name, value] : more.as_object("event")) line.set(name, value);
  try {
    append(line.dump() + "\n");
  } catch (const Error& error) {  // of a full disk: what a run trains is worth more than its record
    if (std::exchange(has_warned_, true)) return;
    log::warning("events of the run are missing from their file from here on, for as long as this lasts: {}",
                 error.what());
  }
}

void RunEvents::append(const std::string& line) const {
  File file = File::open_for_writing(path_);
  // A line that a killed run left torn ends here.
  const int64_t size = file.size();
  char last = '\n';
  if (size > 0) File::open_for_reading(path_).read_at(&last, 1, size - 1);
  const std::string whole = last == '\n' ? line : "\n" + line;
  file.write_at(whole.data(), whole.size(), size);
}

Json start_of_run(const Experiment& e, const StepPlan& plan, Device device,
                  std::optional<double> step_seconds) {
  Json memory(Json::Object{}), flops(Json::Object{}), sent(Json::Object{});
  for (const MemoryPlan::Row& row : plan.memory.by_category()) memory.set(name_of(row.category), row.bytes);
  for (Precision p : {Precision::bf16, Precision::fp8, Precision::fp32}) flops.set(name_of(p), plan.flops(p));
  std::map<std::string, int64_t> by_axis;
  for (const CommStats::Total& t : plan.traffic.totals()) by_axis[t.axis] += t.sent_bytes;
  for (const auto& [axis, bytes] : by_axis) sent.set(axis, bytes);
  Json planned, start;
  planned.set("memory_bytes", plan.memory.total_bytes())
      .set("memory", std::move(memory))
      .set("flops", std::move(flops))
      .set("sent_bytes", std::move(sent));
  if (step_seconds) planned.set("step_seconds", *step_seconds);
  start.set("schema", RunEvents::kSchema)
      .set("steps", e.config.training.steps)
      .set("description", e.config.job.description)
      .set("device", to_string(device))
      .set("ranks", e.mesh.world_size())
      .set("mesh", e.mesh.describe())
      .set("model", model_title(e.config.model))
      .set("parameters", parameter_count(e.shape.model))
      .set("tokens_per_step", e.tokens_per_step())
      .set("plan", std::move(planned))
      .set("config", print_config(e.config));
  if (const PipelineLayout& pipeline = e.shape.pipeline; pipeline.is_on()) {
    Json ranks(Json::Array{});
    for (int rank = 0; rank < pipeline.shape.ranks; ++rank) ranks.push(describe_rank(pipeline, rank));
    start.set("pipeline", Json().set("schedule", describe(pipeline)).set("ranks", std::move(ranks)));
  }
  return start;
}

}  // namespace ottava
