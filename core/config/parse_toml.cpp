#include <toml++/toml.h>

#include "core/config/source.h"
#include "core/error.h"

namespace ottava::config {
namespace {

using SourceName = std::shared_ptr<const std::string>;

Location locate(const SourceName& name, const toml::source_region& region) {
  return {name, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
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
  try {
    toml::table table = toml::parse(text, name);
    return convert(table, std::make_shared<const std::string>(name), 0);
  } catch (const toml::parse_error& e) {
    fail<ConfigError>("config", "{}:{}:{}: not valid TOML: {}", name, e.source().begin.line,
                      e.source().begin.column, e.description());
  }
}

}  // namespace ottava::config
