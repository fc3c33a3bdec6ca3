#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "core/config/coerce.h"
#include "core/config/nearest.h"
#include "core/config/reader.h"
#include "core/contains.h"
#include "core/text/listed.h"

namespace ottava::config {
namespace {

/// What precedes the value.
struct Option {
  std::string path;
  Field* field = nullptr;
  bool is_renamed = false;
  bool is_negated = false;  ///< --section.no_key
};

Option find_option(Section& root, std::string path, bool has_value) {
  std::ranges::replace(path, '-', '_');
  Option option{path};
  option.field = find_field(root, path, &option.is_renamed);
  if (option.field || has_value || !last_name(path).starts_with("no_")) return option;
  std::string positive = path;
  positive.erase(path.size() - last_name(path).size(), 3);
  Field* field = find_field(root, positive, &option.is_renamed);
  if (!field || field->type != Type::boolean) return option;
  option.field = field;
  option.is_negated = true;
  return option;
}

bool names_file(std::string_view word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".toml");
}

std::string suggestion(Section& root, const std::string& path) {
  constexpr std::string_view kNo = "no_";
  if (path.starts_with(kNo)) {  // --no-section.key
    std::string positive = path.substr(kNo.size());
    bool is_renamed = false;
    const Field* field = find_field(root, positive, &is_renamed);
    if (field && field->type == Type::boolean) {
      positive = field->path;
      return fmt::format("; did you mean --{}?",
                         positive.insert(positive.size() - last_name(positive).size(), kNo));
    }
  }
  std::vector<std::string> paths = all_paths(root);
  std::string near = nearest(path, paths);
  for (const std::string& known : paths) {
    if (near.empty() && last_name(known) == last_name(path)) near = known;  // right key, wrong section
  }
  return near.empty() ? "" : fmt::format("; did you mean --{}?", near);
}

}  // namespace

void Reader::read_overrides(const std::vector<std::string>& arguments) {
  ++source_;
  last_wins_ = true;
  for (size_t i = 0; i < arguments.size();) i += read_override(arguments, i);
  last_wins_ = false;
  for (const auto& [path, texts] : overrides_) note_repeated(path, texts);
  overrides_.clear();
}

void Reader::note_repeated(const std::string& path, const std::vector<std::string>& texts) {
  const std::string& last = texts.back();
  const size_t times = texts.size();
  std::vector<std::string> others;
  for (const std::string& text : texts)
    if (text != last && !contains(others, text)) others.push_back(text);
  if (others.empty()) return;
  const auto quoted = [](const std::string& text) { return text.empty() ? "\"\"" : text; };
  notes_.push_back(fmt::format("--{} is given {}: {} is used, {} {} not", path,
                               times == 2 ? "twice" : fmt::format("{} times", times), quoted(last),
                               listed(others, quoted), others.size() == 1 ? "is" : "are"));
}

/// Returns how many arguments it took.
size_t Reader::read_override(const std::vector<std::string>& arguments, size_t i) {
  Location at{std::make_shared<const std::string>("command line"), 0, 0};
  std::string_view argument = arguments[i];
  if (!argument.starts_with("--") || argument.size() == 2) {
    problems_.add(at, "expected --section.key value, got '{}'{}", argument,
                  names_file(argument) ? "; give the configuration file first, before all options" : "");
    return 1;
  }
  size_t equals = argument.find('=');
  bool has_value = equals != std::string_view::npos;
  const std::string* next = i + 1 < arguments.size() && !has_value ? &arguments[i + 1] : nullptr;
  if (next && next->starts_with("--")) next = nullptr;

  Option option =
      find_option(root_, std::string(argument.substr(2, has_value ? equals - 2 : equals)), has_value);
  if (!option.field) {
    problems_.spoil(option.path);
    const bool takes_file = names_file(next ? std::string_view(*next) : argument),
               is_key = option.path.find('.') != std::string::npos;
    std::string meant = is_key || !takes_file ? suggestion(root_, option.path) : "";
    // A flag before the file, or the option of another program that names it; or the value of a path.
    if (takes_file && (next || meant.empty()))
      meant += meant.empty() ? "; give the configuration file first, without an option"
                             : " (a configuration file comes first, before any option)";
    problems_.add(at, "unknown option {}{}", argument.substr(0, equals), meant);
    return next ? 2 : 1;
  }
  Field& field = *option.field;
  if (option.is_renamed)
    notes_.push_back(fmt::format("command line: {} is now called {}", option.path, field.path));

  Value value;
  size_t taken = 1;
  if (has_value) {
    value = Value::of(std::string(argument.substr(equals + 1)), at);
    value.untyped = true;
  } else if (field.type == Type::boolean && (option.is_negated || !next || names_file(*next))) {
    value = Value::of(!option.is_negated, at);
  } else if (next) {
    value = Value::of(*next, at);
    value.untyped = true;
    taken = 2;
  } else {
    problems_.spoil(field.path);
    problems_.add(at, "--{} needs a value: {}", option.path, expectation(field));
    return 1;
  }
  overrides_[field.path].push_back(value.text);
  read_field(field, value, at);
  return taken;
}

}  // namespace ottava::config
