#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/trace/time_split.h"

namespace ottava {

/// The numbers of one name, one per logged step, whose lines are taken together; NaN if none has it, infinity
/// if its number was not finite.
using Column = std::vector<double>;

/// One thing that happened to a run.
struct RunEvent {
  double time = 0;  ///< Unix seconds
  int64_t step = 0;
  std::string event, text;
  bool is_left = false;  ///< of a step that counts no longer, as the run later began again before it
};

/// Time of a step, from the newest trace of rank 0 that is of the run's own steps.
struct TracedTime {
  struct Operation {
    std::string name;
    double milliseconds = 0, flops = 0, bytes = 0;
    bool is_call = false;  ///< between ranks
  };
  std::string about;                  ///< "Rank 0 in steps 19 to 20, from ..."
  TimeSplit split;                    ///< of all steps of the trace
  std::vector<Operation> operations;  ///< longest first
  double end = 0;                     ///< of its steps, in Unix seconds; 0: the file does not say
};

/// What a run left in its dump folder.
struct RunHistory {
  std::string name, folder, file;  ///< `file`: of metrics
  std::vector<int64_t> steps;      ///< ascending
  Column times, tokens;            ///< Unix seconds; tokens seen, interpolated() where a line has none
  std::map<std::string, Column, std::less<>> columns;
  /// Steps and columns whose number was not finite: "grad_norm is nan".
  std::vector<std::pair<int64_t, std::string>> non_finite;
  /// Those of metrics ("cut", where steps count no longer; their time is 0), then those of events.jsonl in
  /// the order of time, which is not that of steps if a run went back.
  std::vector<RunEvent> events;
  int64_t total_steps = 0;  ///< of the last start; 0: not known
  int restarts = 0;
  std::string model, ranks;                                    ///< for people; empty: not known
  std::string schedule;                                        ///< of a pipeline
  std::vector<std::string> stages;                             ///< what each of its ranks holds
  std::vector<std::pair<std::string, double>> planned_memory;  ///< bytes by category
  double planned_bytes = 0, planned_seconds = 0;               ///< of a rank; of a step; 0: not known
  std::map<std::string, std::string> config;
  std::optional<TracedTime> trace;
  std::vector<std::string> notes;  ///< what could not be read, and what that means

  const Column* column(std::string_view name) const;
};

/// `values` at these steps, with those that are not finite interpolated by step between their finite
/// neighbours; 0 before the first finite one, and the last one after it.
Column interpolated(const std::vector<int64_t>& steps, Column values);

/// Hours that the steps up to each line took, without saves, validation and the pauses between starts; all 0
/// if no line says.
Column hours_of(const RunHistory& run);

/// The file of metrics that `given` means, a folder (its metrics.jsonl) or a file. Equal for equal runs
/// however they are given.
std::string metrics_file(const std::string& given);

/// Reads metrics.jsonl, events.jsonl and the newest trace of `folder` (if that names a file of metrics, such
/// as metrics.jsonl or metrics.rank1.jsonl, that file and the others of its folder). Of a line that was
/// written twice, by a run that resumed from an earlier step, the last counts. Whatever cannot be read
/// becomes a note, and the rest is kept. Throws FileError if there is no line of metrics at all.
RunHistory read_run(const std::string& folder);

}  // namespace ottava
