#include <toml++/toml.h>

#include <algorithm>
#include <tuple>

#include "core/config/source.h"
#include "core/contains.h"
#include "core/error.h"

namespace ottava::config {
namespace {

using SourceName = std::shared_ptr<const std::string>;

Location locate(const SourceName& name, const toml::source_region& region) {
  return {name, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

/// The end of the string that begins at `start`; that of its line or of the text if it is not closed.
size_t end_of_string(std::string_view text, size_t start) {
  const char quote = text[start];
  const bool is_long = text.substr(start).starts_with(std::string(3, quote));
  const std::string mark(is_long ? 3 : 1, quote);
  for (size_t i = start + mark.size(); i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text.substr(i).starts_with(mark)) {
      i += mark.size();
      for (int inside = 0; is_long && inside < 2 && i < text.size() && text[i] == quote; ++inside) ++i;
      return i;
    } else if (!is_long && text[i] == '\n') {
      return i;
    }
  }
  return text.size();
}

/// Refuses a key of too many names, before the parser makes a table of each: it frees them by a recursion for
/// which a long key leaves no stack. Outside of strings and comments, nothing else has more than one dot.
void check_dotted_keys(std::string_view text, std::string_view name) {
  size_t dots = 0, line = 1, line_start = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '"' || c == '\'') {
      const size_t end = end_of_string(text, i);
      for (; i < end; ++i)
        if (text[i] == '\n') ++line, line_start = i + 1;
    } else {
      dots = c == '.' ? dots + 1 : contains(std::string_view("\n,=[]{}"), c) ? 0 : dots;
      if (dots >= kMaxDepth)
        fail<ConfigError>("config", "{}:{}:{}: nested more than {} levels deep", name, line,
                          i - line_start + 1, kMaxDepth);
      if (c == '\n') ++line, line_start = i + 1;
      ++i;
    }
  }
}

Value convert(const toml::node& node, const SourceName& name, size_t depth) {
  Location at = locate(name, node.source());
  if (depth > kMaxDepth)
    fail<ConfigError>("config", "{}: nested more than {} levels deep", to_string(at), kMaxDepth);
  if (const auto text = node.as_string()) return Value::of(text->get(), at);
  if (const auto integer = node.as_integer()) return Value::of(integer->get(), at);
  if (const auto real = node.as_floating_point()) return Value::of(real->get(), at);
  if (const auto boolean = node.as_boolean()) return Value::of(boolean->get(), at);
  Value value{.at = at};
  if (const toml::table* table = node.as_table()) {
    value.kind = Value::Kind::table;
    for (const auto& [key, child] : *table) {
      value.members.push_back(
          {std::string(key.str()), locate(name, key.source()), convert(child, name, depth + 1)});
    }
    // The parser's tables are in alphabetical order.
    std::ranges::stable_sort(value.members, {},
                             [](const Member& m) { return std::tuple(m.at.line, m.at.column); });
  } else if (const toml::array* array = node.as_array()) {
    value.kind = Value::Kind::list;
    for (const toml::node& child : *array) value.items.push_back(convert(child, name, depth + 1));
  } else {
    fail<ConfigError>("config",
                      "{}: a date or time is not a valid value of any key; write a string in quotes",
                      to_string(at));
  }
  return value;
}

}  // namespace

Value parse_toml(std::string_view text, const std::string& name) {
  check_size(text, name);
  check_dotted_keys(text, name);
  try {
    toml::table table = toml::parse(text, name);
    return convert(table, std::make_shared<const std::string>(name), 0);
  } catch (const toml::parse_error& e) {
    fail<ConfigError>("config", "{}:{}:{}: not valid TOML: {}", name, e.source().begin.line,
                      e.source().begin.column, e.description());
  }
}

}  // namespace ottava::config
