#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/report_page/run_history.h"

namespace ottava {

/// What people first want to know about a run.
struct Verdict {
  std::string state;     ///< "finished", "stopped", "failed", "interrupted", "running", "ended"
  std::string headline;  ///< one sentence
  std::vector<std::pair<std::string, std::string>> facts;  ///< name and value
};
/// `now`: Unix seconds. A run without an end counts as running if it has written in the last ten minutes,
/// else as interrupted; one without any events as ended.
Verdict verdict_of(const RunHistory& run, double now);

/// `run` compared with `baseline` in one sentence: distance of losses over common steps, tokens/s, memory.
std::string comparison_of(const RunHistory& run, const RunHistory& baseline);

}  // namespace ottava
