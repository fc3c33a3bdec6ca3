#pragma once

#include <string>
#include <vector>

#include "apps/report_page/run_history.h"

namespace ottava {

/// How a page shows its runs.
struct PageOptions {
  int baseline = 0;         ///< index of the run that others are compared with
  std::string x = "steps";  ///< what charts begin with: "steps", "tokens", "hours"
  double now = 0;           ///< Unix seconds
};

/// One HTML page that needs nothing else: what became of the runs, their curves in common charts, time by
/// operation, memory, FP8 operands, events, configurations. It loads nothing from a network, and its policy
/// forbids it.
std::string report_page(const std::vector<RunHistory>& runs, const std::vector<std::string>& unreadable,
                        const PageOptions& options);

}  // namespace ottava
