#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/report/memory_use.h"
#include "core/metrics/metrics_config.h"
#include "core/metrics/step_line.h"

namespace ottava {

/// Whether the log line is coloured: on a terminal, in a single process (that of launched ranks is the
/// launcher's, whose output often ends in a file), unless metrics.disable_color_printing, a non-empty
/// NO_COLOR (https://no-color.org) or TERM=dumb forbids it.
bool prints_colors(const MetricsConfig& config, int world_size, bool is_terminal);

/// Reports how a run goes: log lines, a progress line on a terminal, JSON lines and TensorBoard. A file that
/// cannot be written later on, such as on a full disk, is one warning, and what did not fit is missing from
/// it.
class MetricsReporter {
 public:
  struct Options {
    MetricsConfig config;
    std::string folder;  ///< where files go: job.dump_folder, or load_only in it under checkpoint.load_only
    int64_t total_steps = 0;
    int64_t resumed_at = 0;  ///< records past this step belong to a run that was cut off
    bool goes_back = false;  ///< behind checkpoints that stay: what is cut off is kept apart
    /// rank 0 reports; the others write files of their own under metrics.save_for_all_ranks
    int rank = 0, world_size = 1;
  };
  explicit MetricsReporter(Options options);
  ~MetricsReporter();

  /// A name and a value of a step.
  using Scalars = std::vector<std::pair<std::string, double>>;
  /// `more` goes only to the files.
  void log_step(const StepMetrics& metrics, const Scalars& more = {});
  struct Validation {
    std::string name = {};  ///< of the set; empty: there is one
    double loss = 0, tokens_per_second = 0;
    double bits_per_byte = 0;  ///< of the bytes of targets that are no special tokens; 0: there are none
  };
  void log_validation(int64_t step, const Validation& validation, const MemoryUse& memory);
  /// Reports a line to the log, and scalars to the files.
  void log_evaluation(int64_t step, const std::string& line, const Scalars& scalars);
  /// Reports what the model added to each prompt: one line each in the log, `samples` in metrics.jsonl, and a
  /// text in TensorBoard.
  void log_samples(int64_t step, const std::vector<std::string>& prompts,
                   const std::vector<std::string>& texts);
  /// After each step, on a terminal: shows where the run is, how long the step took, and how long the rest
  /// takes if it goes on as since the first call, with what was between steps. `planned`: text about the
  /// planned time of a step.
  void progress(int64_t step, double seconds_per_step, const std::string& planned);
  void flush();

 private:
  struct Files;

  Options options_;
  std::unique_ptr<Files> files_;
  bool colors_ = false, on_terminal_ = false;
  using Time = std::chrono::steady_clock::time_point;
  Time last_progress_;
  std::optional<std::pair<int64_t, Time>> first_progress_;  ///< its step, and when
};

}  // namespace ottava
