#include "fp8/policy_match.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/contains.h"
#include "core/text/glob.h"
#include "core/text/listed.h"

namespace ottava::fp8 {
namespace {

template <class Matches>
bool covers_something(const std::vector<PolicyGemm>& gemms, Matches&& matches) {
  return std::ranges::any_of(gemms, [&](const PolicyGemm& gemm) { return contains(matches(gemm), true); });
}

/// The last entry that covers a part decides it. An entry that decides nothing, and is contradicted wherever
/// it matches, must have been meant to do something.
void refuse_overruled(const Float8Config& config, const std::vector<PolicyGemm>& gemms) {
  constexpr size_t kNone = -1;
  std::vector<bool> decides(config.policy.size(), false);
  std::vector<size_t> overruled_by(config.policy.size(), kNone);
  for (const PolicyGemm& gemm : gemms) {
    std::vector<size_t> last(gemm.parts.size(), kNone);
    for (size_t e = config.policy.size(); e-- > 0;) {
      const std::vector<bool> covered = parts_matching_glob(gemm, config.policy[e].match);
      for (size_t p = 0; p < covered.size(); ++p) {
        if (!covered[p]) continue;
        if (last[p] == kNone) {
          last[p] = e;
          decides[e] = true;
        } else if (config.policy[last[p]].recipe != config.policy[e].recipe) {
          overruled_by[e] = last[p];
        }
      }
    }
  }
  for (size_t e = 0; e < decides.size(); ++e) {
    if (decides[e] || overruled_by[e] == kNone) continue;
    const Float8PolicyConfig &entry = config.policy[e], &later = config.policy[overruled_by[e]];
    fail<ConfigError>(
        "fp8",
        "quantize.linear.float8.policy asks for {} in \"{}\", but later entries override all of its matches "
        "(\"{}\": {}): the last match applies, so put more general patterns first",
        entry.recipe, entry.match, later.match, later.recipe);
  }
}

/// "layers.*.attention.wqkv (wq, wk, wv)" and its like, each once.
std::string known_names(const std::vector<PolicyGemm>& gemms) {
  std::vector<std::string> names;
  for (const PolicyGemm& gemm : gemms) {
    std::string name = gemm.name;
    const std::string layer = fmt::format(".{}.", gemm.layer);
    if (size_t at = name.find(layer); at != std::string::npos) name.replace(at, layer.size(), ".*.");
    if (gemm.parts.size() > 1) {
      name += fmt::format(" ({})", listed(gemm.parts, [](const auto& part) { return part.name; }));
    }
    if (!contains(names, name)) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string part_name(const PolicyGemm& gemm, const PolicyGemm::Part& part) {
  const size_t dot = gemm.name.rfind('.');
  if (gemm.parts.size() == 1) return gemm.name;
  return (dot == std::string::npos ? "" : gemm.name.substr(0, dot + 1)) + part.name;
}

std::vector<bool> parts_matching_filter(const PolicyGemm& gemm, std::string_view filter) {
  std::vector<bool> covered;
  for (const auto& part : gemm.parts) covered.push_back(contains_text(part_name(gemm, part), filter));
  if (!contains(covered, true) && contains_text(gemm.name, filter)) covered.assign(gemm.parts.size(), true);
  return covered;
}

std::vector<bool> parts_matching_glob(const PolicyGemm& gemm, const std::string& glob) {
  if (glob_matches(glob, gemm.name)) return std::vector<bool>(gemm.parts.size(), true);
  std::vector<bool> covered;
  for (const auto& part : gemm.parts) covered.push_back(glob_matches(glob, part_name(gemm, part)));
  return covered;
}

void check_entries(const Float8Config& config, const std::vector<PolicyGemm>& gemms) {
  std::vector<std::string> idle;
  for (const std::string& filter : config.filter_fqns) {
    auto matches = [&](const PolicyGemm& gemm) { return parts_matching_filter(gemm, filter); };
    if (filter != kAutoFilter && !covers_something(gemms, matches))
      idle.push_back(fmt::format("filter_fqns \"{}\"", filter));
  }
  for (const Float8PolicyConfig& entry : config.policy) {
    auto matches = [&](const PolicyGemm& gemm) { return parts_matching_glob(gemm, entry.match); };
    if (!covers_something(gemms, matches)) idle.push_back(fmt::format("policy \"{}\"", entry.match));
    for (const Float8PolicyConfig& other : config.policy) {
      if (entry.match == other.match && entry.recipe != other.recipe) {
        fail<ConfigError>("fp8",
                          "quantize.linear.float8.policy has both {} and {} for \"{}\": keep one of them",
                          entry.recipe, other.recipe, entry.match);
      }
    }
  }
  if (!idle.empty()) {
    fail<ConfigError>("fp8", "in quantize.linear.float8, {} matches no matrix product: this model has {}",
                      fmt::join(idle, " and "), known_names(gemms));
  }
  refuse_overruled(config, gemms);
}

}  // namespace ottava::fp8
