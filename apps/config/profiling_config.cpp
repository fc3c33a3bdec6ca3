#include "apps/config/profiling_config.h"

#include <fmt/core.h>

#include <optional>
#include <string_view>

#include "core/config/section.h"
#include "core/contains.h"
#include "core/error.h"
#include "core/text/number.h"
#include "core/text/split.h"
#include "core/trace/nvtx.h"

namespace ottava {

ProfilingConfig::Phase ProfilingConfig::phase_of(int64_t step) const {
  if (!enable_profiling) return Phase::off;
  const int64_t left = (profile_freq - step % profile_freq) % profile_freq;  // until the trace is whole
  if (left < profiler_active) return Phase::active;
  return left < profiler_active + profiler_warmup ? Phase::warmup : Phase::off;
}

std::vector<int> ProfilingConfig::named_ranks(int world_size) const {
  std::vector<int> ranks;
  if (profile_ranks == "auto" || profile_ranks == "all") return ranks;
  for (std::string_view number : split_text(profile_ranks, ',')) {
    const std::optional<int> rank = parse_number<int>(number);
    if (!rank || *rank >= world_size) {
      fail<ConfigError>("profiling", "profile_ranks contains rank {}, expected ranks 0 to {}", number,
                        world_size - 1);
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

void declare(config::Section& s, ProfilingConfig& c) {
  constexpr double kMost = 1 << 30;
  s.meaning("traces of whole steps, for Perfetto and for tools that read PyTorch's traces");
  s.field("enable_profiling", c.enable_profiling,
          "trace the last profiler_active of every profile_freq steps");
  s.field("save_traces_folder", c.save_traces_folder,
          "folder of the traces iteration_STEP/rankR_trace.json.gz, inside job.dump_folder unless its path "
          "leads elsewhere; none is ever removed");
  s.field("profile_freq", c.profile_freq, "steps from one trace to the next").at_least(1).unit("steps");
  s.field("profiler_active", c.profiler_active, "number of steps in each trace")
      .range(1, kMost)
      .unit("steps");
  s.field("profiler_warmup", c.profiler_warmup,
          "steps before each trace that run like traced steps but are not recorded")
      .range(0, kMost)
      .unit("steps");
  s.field("profile_ranks", c.profile_ranks,
          "ranks that write traces; auto: all of up to 8 ranks, else the first of each machine; all: every "
          "rank; or their numbers, such as 0,8,16");
  s.field("enable_nvtx", c.enable_nvtx,
          "mark the operations of traced steps with NVTX ranges, for Nsight Systems");
}

void validate(const ProfilingConfig& c, config::Problems& problems) {
  if (c.profile_freq < c.profiler_active + c.profiler_warmup) {
    problems.add("profiling.profile_freq",
                 "{} is less than profiler_warmup {} + profiler_active {}; raise profile_freq or lower these",
                 c.profile_freq, c.profiler_warmup, c.profiler_active);
  }
  const std::string& ranks = c.profile_ranks;
  if (ranks != "auto" && ranks != "all" &&
      (ranks.empty() || ranks.find_first_not_of("0123456789,") != std::string::npos ||
       ranks.starts_with(',') || ranks.ends_with(',') || contains_text(ranks, ",,"))) {
    problems.add("profiling.profile_ranks", "expected auto, all or numbers such as 0,8,16, got \"{}\"",
                 ranks);
  }
  if (c.enable_nvtx && !nvtx::available()) {
    problems.add("profiling.enable_nvtx",
                 "this program was built without NVTX (nvtx3/nvToolsExt.h of the CUDA toolkit)");
  }
}

}  // namespace ottava
