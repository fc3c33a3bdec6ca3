#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/declare.h"

namespace ottava {

/// One source of `training.mixture`. What keys mean: mixture_config.cpp.
struct MixtureSourceConfig {
  std::string name;
  std::vector<std::string> path;
  std::optional<double> weight, repeat, max_epochs;
  std::optional<std::string> format, text_key;  ///< absent: training's
  bool operator==(const MixtureSourceConfig&) const = default;
};

/// One stage of `training.mixture_stages`.
struct MixtureStageConfig {
  int64_t from_step = 0;
  std::vector<std::string> weights;
  bool operator==(const MixtureStageConfig&) const = default;

  /// The weights as numbers; they must be valid.
  std::vector<double> numbers() const;
};

/// Files under a name: one of `evaluation.tasks`.
struct NamedFilesConfig {
  std::string name;
  std::vector<std::string> path;
  bool operator==(const NamedFilesConfig&) const = default;
};

/// One set of `validation.datasets`.
struct ValidationSetConfig : NamedFilesConfig {
  std::optional<std::string> format, text_key;  ///< absent: training's
  bool operator==(const ValidationSetConfig&) const = default;
};

void declare(config::Section& s, MixtureSourceConfig& c);
void declare(config::Section& s, MixtureStageConfig& c);
void declare(config::Section& s, NamedFilesConfig& c);
void declare(config::Section& s, ValidationSetConfig& c);
/// Checks that names, weights and stages make sense together; opens no files.
void validate(const std::vector<MixtureSourceConfig>& sources, const std::vector<MixtureStageConfig>& stages,
              config::Problems& problems);
void validate(const std::vector<ValidationSetConfig>& sets, config::Problems& problems);
/// Checks that names differ and can name a metric, and that each set has paths.
void check_names(std::string_view key, const std::vector<NamedFilesConfig>& sets, config::Problems& problems);

}  // namespace ottava
