#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/trace/time_split.h"

namespace ottava {

/// Numbers of one name, one for each logged line; what a line does not have is NaN.
using Column = std::vector<double>;

/// One thing that happened to a run.
struct RunEvent {
  double time = 0;  ///< Unix seconds
  int64_t step = 0;
  std::string event, text;
};

/// The newest trace of rank 0: a step of it.
struct TracedTime {
  struct Operation {
    std::string name;
    double milliseconds = 0, flops = 0, bytes = 0;
    bool is_call = false;  ///< between ranks
  };
  std::string about;                  ///< "rank 0, steps 19 to 20: ..."
  TimeSplit split;                    ///< of all its steps
  std::vector<Operation> operations;  ///< longest first
};

/// What a run left in its dump folder.
struct RunHistory {
  std::string name, folder;
  std::vector<int64_t> steps;  ///< ascending
  Column times, tokens;        ///< Unix seconds; tokens seen, interpolated() where a line has none
  std::map<std::string, Column, std::less<>> columns;
  /// Steps and columns whose number was not finite: "grad_norm is nan".
  std::vector<std::pair<int64_t, std::string>> non_finite;
  std::vector<RunEvent> events;  ///< as they happened, which is not by step where a run went back
  int64_t total_steps = 0;       ///< of the last start; 0: not known
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

/// `values` of lines of these steps: what is not finite is interpolated by step between its neighbours that
/// are; 0 before the first of them, the last behind it.
Column interpolated(const std::vector<int64_t>& steps, Column values);

/// Reads metrics.jsonl, events.jsonl and the newest trace of `folder` (or of the file's folder, where it
/// names a metrics.jsonl). A line that is written twice, by a run that went on from an earlier step, counts
/// as it was written last. Whatever cannot be read becomes a note and the rest is kept. Throws FileError
/// where there is no line of metrics at all.
RunHistory read_run(const std::string& folder);

}  // namespace ottava
