#pragma once

#include <optional>
#include <string>

#include "core/config/declare.h"

namespace ottava {

/// Section `job`. What keys mean: job_config.cpp.
struct JobConfig {
  std::string dump_folder = "./outputs";
  std::string description = "default job";
  bool print_config = false;
  std::optional<std::string> save_config_file;
  bool operator==(const JobConfig&) const = default;

  /// The path of a file or folder in dump_folder.
  std::string in_dump_folder(const std::string& name) const;
};

void declare(config::Section& s, JobConfig& c);

}  // namespace ottava
