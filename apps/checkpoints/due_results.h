#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/config/config.h"

namespace ottava {

/// What is asked of the model after a step, each by a name that metrics.jsonl has for its result.
inline constexpr std::string_view kSamplesResult = "samples";
std::string validation_result(std::string_view set);
std::string evaluation_result(std::string_view task);

/// What the configuration asks after `step`.
std::vector<std::string> results_due(const Config& config, int64_t step);
/// Those of them that metrics.jsonl in job.dump_folder does not have, as the run was ended before they were
/// there. None with metrics.enable_json_lines off, where nothing tells, or checkpoint.load_only. Throws
/// FileError.
std::vector<std::string> results_missing(const Config& config, int64_t step);

}  // namespace ottava
