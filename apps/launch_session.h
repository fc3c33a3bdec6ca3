#pragma once

#include <functional>

#include "apps/experiment.h"
#include "parallel/rank_groups.h"

namespace ottava {

/// A rank that is ready to work on an experiment: connected, with its device, threads and log chosen.
struct Session {
  Experiment experiment;
  RankGroups& ranks;
  Device device;
};

/// Finds out how the process was launched, connects the ranks, chooses device and threads, reads the tokenizer, resolves
/// the experiment and calls body. Throws what goes wrong, on all ranks.
void run_session(const Config& config, const std::function<void(Session&)>& body);

}  // namespace ottava
