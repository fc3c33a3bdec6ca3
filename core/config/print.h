#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/config/section.h"

namespace ottava::config {

/// What to_yaml() adds.
struct PrintOptions {
  bool comments = false;  ///< meaning, unit and choices of each key
};
/// The current settings as YAML, with sections in declared order and without keys that are kept nowhere.
/// Reading it gives the same structs.
std::string to_yaml(const Section& root, const PrintOptions& options);

/// A value on one line: `[a, "1"]`, `{match: output}`, `0.5`. Texts are quoted if YAML would read them as
/// something else.
std::string to_inline_yaml(const Value& value);

/// The texts that commas separate in one, without blanks around them.
std::vector<std::string> parts_between_commas(std::string_view text);
/// `["a", "b"]`, as both YAML and TOML read it.
std::string to_quoted_list(const std::vector<std::string>& texts);

/// JSON Schema (draft 7) of a file, for editors: types, defaults, ranges, choices and meanings of every key.
std::string to_json_schema(const Section& root, const std::string& title);

/// What becomes of a key.
struct KeyFate {
  std::string path;
  std::string type;      ///< "an integer >= 1", "flash, cudnn or auto"; for a renamed key ""
  std::string fallback;  ///< default, in YAML
  std::string fate;      ///< "used", "noted", "refused", "renamed"
  std::string text;      ///< meaning and unit, reason, or the new name
};
std::vector<KeyFate> fates(const Section& root);

}  // namespace ottava::config
