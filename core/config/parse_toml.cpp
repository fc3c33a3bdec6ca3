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
  Value value;
  if (const toml::table* table = node.as_table()) {
    value.kind = Value::Kind::table;
    for (const auto& [key, child] : *table) {
      value.members.push_back(
          {std::string(key.str()), locate(name, key.source()), convert(child, name, depth + 1)});
    }
  } else if (const toml::array* array = node.as_array()) {
    value.kind = Value::Kind::list;
    for (const toml::node& child : *array) value.items.push_back(convert(child, name, depth + 1));
  } else if (auto text = node.as_string()) {
    value = Value::of(text->get());
  } else if (auto integer = node.as_integer()) {
    value = Value::of(integer->get());
  } else if (auto real = node.as_floating_point()) {
    value = Value::of(real->get());
  } else if (auto boolean = node.as_boolean()) {
    value = Value::of(boolean->get());
  } else {
    fail<ConfigError>("config", "{}: no key takes a date or time", to_string(at));
  }
  value.at = at;
  return value;
}

}  // namespace

Value parse_toml(std::string_view text, const std::string& name) {
  if (text.size() > kMaxBytes)
    fail<ConfigError>("config", "{}: {} bytes, at most {}", name, text.size(), kMaxBytes);
  try {
    toml::table table = toml::parse(text, name);
    return convert(table, std::make_shared<const std::string>(name), 0);
  } catch (const toml::parse_error& e) {
    fail<ConfigError>("config", "{}:{}:{}: not valid TOML: {}", name, e.source().begin.line,
                      e.source().begin.column, e.description());
  }
}

}  // namespace ottava::config
