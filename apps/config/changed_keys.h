#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/config/config.h"

namespace ottava {

/// A key and its two values, each on one line of YAML.
struct KeyDifference {
  std::string key, first, second;
};
/// The keys whose values differ in two printed configurations, in the order of sections. Keys that only one
/// of the two has do not count, nor does whether a source of training.mixture has training's format and
/// text_key by name or by null. The names stand for the texts in errors. Throws ConfigError if a text is not
/// a configuration.
struct PrintedConfig {
  std::string_view text;
  std::string name;
};
std::vector<KeyDifference> key_differences(const PrintedConfig& first, const PrintedConfig& second);

/// Keys whose value differs from that in `earlier`, a printed configuration: "optimizer.lr 0.002 -> 0.001",
/// in the order of sections. Keys that only one of the two has do not count. `name` stands for the text in
/// errors. Throws ConfigError if the text is not a configuration.
std::vector<std::string> changed_keys(std::string_view earlier, const std::string& name, const Config& now);

}  // namespace ottava
