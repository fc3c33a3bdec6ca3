#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/config/experiment.h"
#include "apps/train/stop_signals.h"
#include "core/log.h"
#include "parallel/ranks/launch.h"
#include "parallel/sharding/rank_groups.h"

namespace ottava {

/// A rank that is ready to work on an experiment: connected, with its device, threads and log chosen.
struct Session {
  Experiment experiment;
  RankGroups& ranks;
  Device device;
};

/// The rank that log lines of this process show, and whether they are shown (shows_log()). Throws
/// ConfigError.
log::RankView rank_in_log(const Launch& launch = detect_launch());

/// load_config(), for a command that runs a session. A single process throws. A rank among several, whose
/// machine may have another file than theirs or none, logs why it cannot load it and tells the others, for
/// which it waits up to a minute; all of them end then. Nothing is returned: the exit code is 1.
std::optional<Config> load_session_config(const std::filesystem::path& file,
                                          const std::vector<std::string>& overrides);

/// Finds out how the process was launched, connects the ranks, chooses threads and device, and checks that
/// all run the same binary and configuration. Calls check_inputs, if there is one: what one machine of
/// several lacks, all ranks say. Then reads the tokenizer, resolves the experiment, checks that both are the
/// same on all ranks and that these ranks can do what the configuration asks of them, and calls body. Returns
/// the exit code. A single process throws whatever goes wrong; among several, each rank logs it and the code
/// is 1. A signal that asks to stop while the ranks look for each other over TCP ends a rank that waits for
/// others 5 s later, with the code 0.
int run_session(const Config& config, const std::function<void(Session&)>& body,
                const StopSignals* signals = nullptr, const std::function<void()>& check_inputs = {});

}  // namespace ottava
