#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "apps/config/experiment.h"
#include "apps/step/step_plan.h"
#include "core/io/json.h"

namespace ottava {

/// What happened to a run, for `ottava report`: `events.jsonl` in the dump folder, one object per line:
/// {"time": Unix seconds, "event": name, "step": the last whole step, "text": for people, ...}. "saved" comes
/// when a checkpoint is complete, which may be steps after its own, and has the checkpoint's step. A start
/// also has "schema" and the plan. A run that was killed leaves no end; the next start says where it
/// continued.
class RunEvents {
 public:
  static constexpr int64_t kSchema = 1;

  /// Writes nothing.
  RunEvents() = default;
  /// Continues the file of a run that resumes after step `resumed_at`; one that starts anew (0) moves an
  /// existing file to `events.jsonl.previous` (`.previous-2` if that is taken). Throws FileError.
  RunEvents(const std::string& folder, int64_t resumed_at);

  /// Events: start, finished, stopped, failed, saved, alert, skipped. Never throws: an event that cannot be
  /// written is left out, which the first time is a warning.
  void add(std::string_view event, int64_t step, std::string text, Json more = {});

 private:
  void append(const std::string& line) const;

  std::string path_;
  bool has_warned_ = false;
};

/// The members of a start: schema, steps, description, device, ranks, mesh, model, parameters, tokens per
/// step, plan (bytes by category, FLOPs by precision, bytes sent by axis, seconds of a step where they are
/// known), the configuration as YAML and, with a pipeline, its schedule and what each of its ranks holds.
Json start_of_run(const Experiment& experiment, const StepPlan& plan, Device device,
                  std::optional<double> step_seconds);

}  // namespace ottava
