#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/declare.h"
#include "core/config/problems.h"

namespace ottava {

/// Section `profiling`: traces of whole steps. What keys mean: profiling_config.cpp.
struct ProfilingConfig {
  bool enable_profiling = false;
  std::string save_traces_folder = "profile_traces";
  int64_t profile_freq = 10, profiler_active = 1, profiler_warmup = 3;
  std::string profile_ranks = "auto";
  bool enable_nvtx = false;
  bool operator==(const ProfilingConfig&) const = default;

  enum class Phase : uint8_t { off, warmup, active };
  /// The phase of a step, counted from 1: of every profile_freq steps the last profiler_active are traced.
  Phase phase_of(int64_t step) const;
  /// True if a trace is complete after this step.
  bool ends_at(int64_t step) const { return enable_profiling && step % profile_freq == 0; }
  /// The ranks that profile_ranks names by their numbers, if it does. Throws ConfigError for one that is not
  /// among so many.
  std::vector<int> named_ranks(int world_size) const;
};

void declare(config::Section& s, ProfilingConfig& c);
void validate(const ProfilingConfig& c, config::Problems& problems);

}  // namespace ottava
