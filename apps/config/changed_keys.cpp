#include "apps/config/changed_keys.h"

#include <algorithm>

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

// Sources of a mixture that name no format and no text_key have those of training.
config::Value tree_of(const PrintedConfig& config) {
  config::Value tree = config::parse_yaml(config.text, config.name);
  const auto training = std::ranges::find(tree.members, "training", &config::Member::key);
  if (training == tree.members.end()) return tree;
  const auto mixture = std::ranges::find(training->value.members, "mixture", &config::Member::key);
  if (mixture == training->value.members.end()) return tree;
  for (config::Value& source : mixture->value.items)
    for (config::Member& key : source.members)
      if (key.value.kind == config::Value::Kind::null && (key.key == "format" || key.key == "text_key"))
        if (const config::Value* shared = training->value.find(key.key)) key.value = *shared;
  return tree;
}

}  // namespace

std::vector<KeyDifference> key_differences(const PrintedConfig& first, const PrintedConfig& second) {
  std::vector<KeyDifference> out;
  compare("", tree_of(first), tree_of(second), out);
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
