#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/io/json.h"

namespace ottava::tokenizer {

/// The part of a JSON value that a message can quote.
inline std::string quoted(const Json& value) {
  std::string text = value.is_object() || value.is_array() ? std::string(value.kind()) : value.dump();
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

/// Reads values of tokenizer.json and tokenizer_config.json. What is not as expected is thrown as a FileError
/// that begins with the name of the file.
class DefinitionFile {
 public:
  explicit DefinitionFile(std::string name) : name_(std::move(name)) {}

 protected:
  template <class... A>
  [[noreturn]] void refuse(fmt::format_string<A...> format, A&&... args) const {
    fail<FileError>(name_, "{}", fmt::format(format, std::forward<A>(args)...));
  }

  /// The member, or null if it is not there.
  static const Json& get(const Json& object, const char* key) {
    static const Json null;
    const Json* value = object.find(key);
    return value ? *value : null;
  }
  const Json& member(const Json& object, const char* key) const {
    const Json& value = get(object, key);
    if (value.is_null()) refuse("\"{}\" is missing", key);
    return value;
  }
  bool boolean(const Json& object, const char* key, bool otherwise) const {
    const Json& value = get(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_bool()) refuse("\"{}\" must be true or false, got {}", key, quoted(value));
    return value.as_bool(key);
  }
  std::string text(const Json& value, std::string_view what) const {
    if (!value.is_string()) refuse("{} must be a string, got {}", what, quoted(value));
    return value.as_string(what);
  }
  std::string type_of(const Json& section, std::string_view what) const {
    if (!section.is_object()) refuse("{} must be an object, got {}", what, quoted(section));
    return text(get(section, "type"), fmt::format("the type of {}", what));
  }
  int32_t id(const Json& value, std::string_view token) const {
    int64_t number = value.is_integer() ? value.as_integer("id") : -1;
    if (number < 0 || number > INT32_MAX) {
      refuse("token '{}' has id {}; expected an integer from 0 to {}", token, quoted(value), INT32_MAX);
    }
    return static_cast<int32_t>(number);
  }

  std::string name_;
};

}  // namespace ottava::tokenizer
