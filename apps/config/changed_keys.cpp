#include "apps/config/changed_keys.h"

#include "core/config/print.h"
#include "core/config/source.h"

namespace ottava {
namespace {

void compare(const std::string& path, const config::Value& was, const config::Value& is,
             std::vector<KeyDifference>& out) {
  using Kind = config::Value::Kind;
  if (was.kind != Kind::table || is.kind != Kind::table) {
    if (!config::same(was, is))
      out.push_back({path, config::to_inline_yaml(was), config::to_inline_yaml(is)});
    return;
  }
  for (const config::Member& member : is.members) {
    if (const config::Value* earlier = was.find(member.key))
      compare(path.empty() ? member.key : path + "." + member.key, *earlier, member.value, out);
  }
}

}  // namespace

std::vector<KeyDifference> key_differences(const PrintedConfig& first, const PrintedConfig& second) {
  std::vector<KeyDifference> out;
  compare("", config::parse_yaml(first.text, first.name), config::parse_yaml(second.text, second.name), out);
  return out;
}

std::vector<std::string> changed_keys(std::string_view earlier, const std::string& name, const Config& now) {
  const std::string printed = print_config(now);
  std::vector<std::string> out;
  for (const KeyDifference& d : key_differences({earlier, name}, {printed, "this configuration"}))
    out.push_back(fmt::format("{} {} -> {}", d.key, d.first, d.second));
  return out;
}

}  // namespace ottava
