#include "apps/config/mixture_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>

#include "apps/config/limits.h"
#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/data/data_file.h"
#include "core/data/mixture.h"
#include "core/error.h"
#include "core/text/counted.h"

namespace ottava {

using config::Problems;
using config::Value;

namespace {

constexpr std::string_view kMixture = "training.mixture", kStages = "training.mixture_stages";

/// Nothing if the text is not a number.
std::optional<double> number_of(const std::string& text) {
  const Value value = config::plain_scalar(text, {});
  if (value.kind != Value::Kind::integer && value.kind != Value::Kind::real) return std::nullopt;
  return value.real;
}

// They name metrics: "mixture/web/loss".
void check_names(std::string_view key, const std::vector<std::string>& names, Problems& problems) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    const bool is_plain = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
    });
    if (!is_plain)
      problems.add(key, "the name \"{}\" is not valid; expected letters, digits, '_', '-' and '.' only",
                   name);
    if (!seen.insert(name).second)
      problems.add(key, "two entries have the name \"{}\"; every name must be unique", name);
  }
}

template <class T>
std::vector<std::string> names_of(const std::vector<T>& entries) {
  std::vector<std::string> names;
  for (const T& entry : entries) names.push_back(entry.name);
  return names;
}

void check_weights(std::string_view key, const std::vector<double>& weights, Problems& problems) {
  try {
    data::MixtureTable table(weights);
  } catch (const ConfigError& error) {
    problems.add(key, error);
  }
}

int64_t weights_given(const std::vector<MixtureSourceConfig>& sources) {
  return std::ranges::count_if(sources, [](const auto& source) { return source.weight.has_value(); });
}

// All sources have a weight or none, and weights and repeats do not mix.
void check_shares(const std::vector<MixtureSourceConfig>& sources, Problems& problems) {
  const int64_t weighted = weights_given(sources);
  if (weighted == 0) return;
  if (std::ranges::any_of(sources, [](const auto& source) { return source.repeat.has_value(); })) {
    problems.add(kMixture,
                 "some sources have a weight and others a repeat; give all of them the same one of the two");
  } else if (weighted < std::ssize(sources)) {
    problems.add(kMixture,
                 "only {} of {} sources {} a weight; give every source one, 0 to a source that only a "
                 "later stage uses",
                 weighted, sources.size(), weighted == 1 ? "has" : "have");
  } else {
    std::vector<double> weights;
    for (const MixtureSourceConfig& source : sources) weights.push_back(*source.weight);
    check_weights(kMixture, weights, problems);
  }
}

// False if its weights are not numbers, one for each source.
bool check_stage(const MixtureStageConfig& stage, size_t sources, Problems& problems) {
  if (stage.weights.size() != sources) {
    problems.add(kStages, "the stage from step {} has {}, expected {}, one for each source", stage.from_step,
                 counted(stage.weights.size(), "weight"), sources);
    return false;
  }
  const auto bad = std::ranges::find_if(stage.weights, [](const std::string& w) { return !number_of(w); });
  if (bad != stage.weights.end()) {
    problems.add(kStages, "expected a number, got the string \"{}\"", *bad);
    return false;
  }
  check_weights(kStages, stage.numbers(), problems);
  return true;
}

}  // namespace

std::vector<double> MixtureStageConfig::numbers() const {
  std::vector<double> numbers;
  for (const std::string& weight : weights) numbers.push_back(number_of(weight).value_or(-1));
  return numbers;
}

void declare(config::Section& s, MixtureSourceConfig& c) {
  s.field("name", c.name, "name of the source in the log and the metrics").required();
  s.field("path", c.path, "data of this source, given as for training.dataset_path").required();
  s.field("weight", c.weight, "share of the tokens, relative to the weights of the other sources")
      .at_least(0);
  s.field("repeat", c.repeat,
          "used instead of weight: passes over this source for each pass over a source with repeat 1")
      .above(0);
  s.field("max_epochs", c.max_epochs,
          "a run that would pass over this source more often is refused; null: a warning above 4")
      .above(0)
      .unit("epochs");
  s.field("format", c.format, "format of the files; null: training.format").one_of(data::format_names());
  s.field("text_key", c.text_key, "key that holds the text in JSON lines; null: training.text_key");
}

void declare(config::Section& s, MixtureStageConfig& c) {
  s.field("from_step", c.from_step, "first step that uses these weights").required().range(2, kMostSteps);
  s.field("weights", c.weights,
          "one weight for each source, in the order of training.mixture; 0: stop using the source")
      .required()
      .or_scalar();
}

void declare(config::Section& s, NamedFilesConfig& c) {
  s.field("name", c.name, "name in the log and the metrics").required();
  s.field("path", c.path, "files, given as for validation.dataset_path").required();
}

void declare(config::Section& s, ValidationSetConfig& c) {
  declare(s, static_cast<NamedFilesConfig&>(c));
  s.field("format", c.format, "format of the files; null: training.format").one_of(data::format_names());
  s.field("text_key", c.text_key, "key that holds the text in JSON lines; null: training.text_key");
}

void validate(const std::vector<MixtureSourceConfig>& sources, const std::vector<MixtureStageConfig>& stages,
              Problems& problems) {
  if (sources.empty()) {
    if (!stages.empty())
      problems.add(kStages, "stages change the weights of training.mixture, which is not set");
    return;
  }
  check_names(kMixture, names_of(sources), problems);
  for (const MixtureSourceConfig& source : sources) {
    if (source.path.empty()) problems.add(kMixture, "{} has no path", source.name);
  }
  check_shares(sources, problems);
  // Without weights all sources are read, as often as `repeat` says. That only some have one is said above.
  const bool has_weights = weights_given(sources) > 0;
  std::vector<bool> is_read;
  for (const MixtureSourceConfig& source : sources)
    is_read.push_back(!has_weights || source.weight.value_or(1) > 0);
  int64_t before = 1;
  for (const MixtureStageConfig& stage : stages) {
    if (stage.from_step <= before && before > 1)
      problems.add(
          kStages,
          "the stage from step {} is listed after the one from step {}; expected stages in increasing order",
          stage.from_step, before);
    before = stage.from_step;
    if (!check_stage(stage, sources.size(), problems)) continue;
    const std::vector<double> weights = stage.numbers();
    for (size_t i = 0; i < weights.size(); ++i) is_read[i] = is_read[i] || weights[i] > 0;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!is_read[i])
      problems.add(kMixture, "{} has weight 0 in every stage; remove this source or give it a weight",
                   sources[i].name);
  }
}

void check_names(std::string_view key, const std::vector<NamedFilesConfig>& sets, Problems& problems) {
  check_names(key, names_of(sets), problems);
  for (const NamedFilesConfig& set : sets)
    if (set.path.empty()) problems.add(key, "{} has no path", set.name);
}

void validate(const std::vector<ValidationSetConfig>& sets, Problems& problems) {
  check_names("validation.datasets", std::vector<NamedFilesConfig>(sets.begin(), sets.end()), problems);
}

}  // namespace ottava
