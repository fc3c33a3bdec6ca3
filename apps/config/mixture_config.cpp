#include "apps/config/mixture_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>

#include "core/config/problems.h"
#include "core/config/section.h"
#include "core/counted.h"
#include "core/data/data_file.h"
#include "core/data/mixture.h"
#include "core/error.h"

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
      problems.add(key, "the name \"{}\" is not made of letters, digits, '_', '-' and '.'", name);
    if (!seen.insert(name).second) problems.add(key, "two entries are named \"{}\"", name);
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

}  // namespace

std::vector<double> MixtureStageConfig::numbers() const {
  std::vector<double> numbers;
  for (const std::string& weight : weights) numbers.push_back(number_of(weight).value_or(-1));
  return numbers;
}

void declare(config::Section& s, MixtureSourceConfig& c) {
  s.field("name", c.name, "of the source in the log and the metrics").required();
  s.field("path", c.path, "as training.dataset_path").required();
  s.field("weight", c.weight, "share of the tokens, relative to the other sources' weights").at_least(0);
  s.field("repeat", c.repeat,
          "instead of weights: how often this source is seen while the others are seen their number of "
          "times")
      .above(0);
  s.field("max_epochs", c.max_epochs,
          "a run that would see this source more often is refused; null: above 4 it is warned of")
      .above(0)
      .unit("epochs");
  s.field("format", c.format, "as training.format").one_of(data::format_names());
  s.field("text_key", c.text_key, "key of the text in JSON lines");
}

void declare(config::Section& s, MixtureStageConfig& c) {
  s.field("from_step", c.from_step, "first step with these weights").required().at_least(2);
  s.field("weights", c.weights, "one for each source, in their order; 0: no more of it")
      .required()
      .or_scalar();
}

void declare(config::Section& s, NamedFilesConfig& c) {
  s.field("name", c.name, "of the set in the log and the metrics").required();
  s.field("path", c.path, "as validation.dataset_path").required();
}

void declare(config::Section& s, ValidationSetConfig& c) {
  declare(s, static_cast<NamedFilesConfig&>(c));
  s.field("format", c.format, "as training.format, which it is without this").one_of(data::format_names());
  s.field("text_key", c.text_key, "key of the text in JSON lines; null: training.text_key");
}

void validate(const std::vector<MixtureSourceConfig>& sources, const std::vector<MixtureStageConfig>& stages,
              Problems& problems) {
  if (sources.empty()) {
    if (!stages.empty()) problems.add(kStages, "there is no training.mixture whose weights could change");
    return;
  }
  check_names(kMixture, names_of(sources), problems);
  std::vector<double> weights;
  int64_t weighted = 0, repeated = 0;
  for (const MixtureSourceConfig& source : sources) {
    if (source.path.empty()) problems.add(kMixture, "{} has no path", source.name);
    weighted += source.weight.has_value(), repeated += source.repeat.has_value();
    weights.push_back(source.weight.value_or(0));
  }
  if (weighted > 0 && repeated > 0) {
    problems.add(kMixture, "some sources have a weight and some a repeat: give one of the two to all");
  } else if (weighted > 0 && weighted < std::ssize(sources)) {
    problems.add(kMixture,
                 "{} of {} sources have a weight: give one to all, 0 to a source that only "
                 "a later stage reads",
                 weighted, sources.size());
  } else if (weighted > 0) {
    check_weights(kMixture, weights, problems);
  }
  int64_t before = 1;
  std::vector<bool> is_read(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) is_read[i] = weighted == 0 || weights[i] > 0;
  for (const MixtureStageConfig& stage : stages) {
    if (stage.from_step <= before && before > 1)
      problems.add(kStages, "a stage from step {} follows one from step {}", stage.from_step, before);
    before = stage.from_step;
    if (stage.weights.size() != sources.size()) {
      problems.add(kStages, "the stage from step {} has {}, expected {}, one for each source",
                   stage.from_step, counted(stage.weights.size(), "weight"), sources.size());
      continue;
    }
    const size_t bad =
        std::ranges::find_if(stage.weights, [](const std::string& w) { return !number_of(w); }) -
        stage.weights.begin();
    if (bad < stage.weights.size()) {
      problems.add(kStages, "expected a number, got the text \"{}\"", stage.weights[bad]);
      continue;
    }
    const std::vector<double> numbers = stage.numbers();
    check_weights(kStages, numbers, problems);
    for (size_t i = 0; i < numbers.size(); ++i) is_read[i] = is_read[i] || numbers[i] > 0;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!is_read[i]) problems.add(kMixture, "{} has weight 0 in every stage: remove it", sources[i].name);
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
