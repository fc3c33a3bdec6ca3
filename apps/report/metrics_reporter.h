#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/report/memory_use.h"
#include "core/metrics/metrics_config.h"
#include "core/metrics/step_line.h"

namespace ottava {

/// Whether the log line is coloured: on a terminal of a single process (among launched ranks it is the
/// launcher's, whose output ends in a file as often as not), unless metrics.disable_color_printing, a
/// NO_COLOR that is not empty (https://no-color.org) or TERM=dumb say otherwise.
bool prints_colors(const MetricsConfig& config, int world_size, bool is_terminal);

/// Says how a run goes: the log line, a progress line on a terminal, JSON lines and TensorBoard.
class MetricsReporter {
 public:
  struct Options {
    MetricsConfig config;
    std::string folder;  ///< job.dump_folder
    int64_t total_steps = 0;
    int64_t resumed_at = 0;  ///< records past this step belong to a run that was cut off
    int rank = 0,
        world_size =
            1;  ///< rank 0 reports; the others write files of their own under metrics.save_for_all_ranks
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
  /// A line of the log, and scalars for the files.
  void log_evaluation(int64_t step, const std::string& line, const Scalars& scalars);
  /// What a model added to each prompt: a line of the log each, `samples` of metrics.jsonl, and text of
  /// TensorBoard.
  void log_samples(int64_t step, const std::vector<std::string>& prompts,
                   const std::vector<std::string>& texts);
  /// Between logged steps, on a terminal: where we are and how long it will take; `planned`: what is said of
  /// the time that was planned for a step.
  void progress(int64_t step, double seconds_per_step, const std::string& planned);
  void flush();

 private:
  struct Files;

  Options options_;
  std::unique_ptr<Files> files_;
  bool colors_ = false, on_terminal_ = false;
  std::chrono::steady_clock::time_point last_progress_;
};

}  // namespace ottava
