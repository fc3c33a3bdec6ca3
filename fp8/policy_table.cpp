#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/text/counted.h"
#include "core/text/listed.h"
#include "fp8/policy.h"

namespace ottava::fp8 {
namespace {

/// One line: the same decision for neighbouring blocks.
struct Line {
  std::string before, after;  ///< of the block's number in the name
  int64_t first = -1, last = -1;
  std::array<std::string, 4> rest;  ///< global shape, local shape, runs in, reason

  std::string name() const {
    if (first < 0) return before;
    return first == last ? fmt::format("{}{}{}", before, first, after)
                         : fmt::format("{}{}-{}{}", before, first, last, after);
  }
};

Line line_of(const GemmDecision& d) {
  Line line{.before = d.gemm.name};
  const std::string number = fmt::format(".{}.", d.gemm.layer);
  if (size_t at = d.gemm.name.find(number); d.gemm.layer >= 0 && at != std::string::npos) {
    line.before = d.gemm.name.substr(0, at + 1);
    line.after = d.gemm.name.substr(at + number.size() - 1);
    line.first = line.last = d.gemm.layer;
  }
  line.rest = {fmt::format("{} x {}", d.gemm.rows(), d.gemm.columns),
               fmt::format("{} x {}", d.gemm.local_rows(), d.gemm.local_columns),
               d.recipe ? std::string(name_of(d.recipe->name)) : "bf16", d.reason};
  return line;
}

}  // namespace

std::string policy_summary(const Policy& policy) {
  std::vector<std::pair<std::string, int64_t>> recipes;
  std::vector<std::pair<std::string, std::string>> reasons;  // reason, first layer
  constexpr size_t kReasons = 3;
  size_t more = 0;
  for (const GemmDecision& d : policy.decisions) {
    if (d.recipe) {
      const std::string name(name_of(d.recipe->name));
      auto known = std::ranges::find(recipes, name, &std::pair<std::string, int64_t>::first);
      if (known == recipes.end()) {
        recipes.emplace_back(name, 1);
      } else {
        ++known->second;
      }
      continue;
    }
    if (std::ranges::any_of(reasons, [&](const auto& r) { return r.first == d.reason; })) continue;
    if (reasons.size() < kReasons) {
      reasons.emplace_back(d.reason, d.gemm.name);
    } else {
      ++more;
    }
  }
  std::string text = listed(
      recipes, [](const auto& recipe) { return fmt::format("{} in {}", recipe.first, recipe.second); });
  text = fmt::format("{} of {}, {} in each forward and backward pass", text.empty() ? "none" : text,
                     counted(policy.decisions.size(), "layer"), counted(policy.fp8_products(), "product"));
  for (size_t i = 0; i < reasons.size(); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "; bf16: " : ", ", reasons[i].second, reasons[i].first);
  }
  return more > 0 ? text + fmt::format(" and {}", counted(more, "more reason")) : text;
}

std::string policy_table(const Policy& policy) {
  std::vector<Line> lines;
  double flops = 0, fp8_flops = 0;
  int64_t fp8_layers = 0;
  for (const GemmDecision& d : policy.decisions) {
    Line line = line_of(d);
    auto same = std::ranges::find_if(lines, [&](const Line& other) {
      return line.first >= 0 && other.last == line.first - 1 && other.before == line.before &&
             other.after == line.after && other.rest == line.rest;
    });
    if (same != lines.end()) {
      same->last = line.last;
    } else {
      lines.push_back(std::move(line));
    }
    const double work = static_cast<double>(d.gemm.rows()) * d.gemm.columns;
    flops += 3 * work;
    fp8_flops += (d.recipe ? d.recipe->fp8_products() : 0) * work;
    fp8_layers += d.recipe.has_value();
  }
  std::vector<std::array<std::string, 5>> rows = {{"layer", "rows x columns",
                                                   fmt::format("on a rank (tp {})", policy.tensor_parallel),
                                                   "runs in", "because"}};
  for (const Line& l : lines) rows.push_back({l.name(), l.rest[0], l.rest[1], l.rest[2], l.rest[3]});
  std::array<size_t, 4> widths = {};
  for (const auto& cells : rows)
    for (size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths[c], cells[c].size());
  std::string table;
  for (const auto& cells : rows) {
    for (size_t c = 0; c < widths.size(); ++c) table += fmt::format("{:<{}}  ", cells[c], widths[c]);
    table += cells[4] + '\n';
  }
  return table + fmt::format("FP8: {} of {}, {} per forward and backward pass, {:.1f}% of their FLOPs\n",
                             fp8_layers, counted(policy.decisions.size(), "layer"),
                             counted(policy.fp8_products(), "product"),
                             flops > 0 ? 100 * fp8_flops / flops : 0.0);
}

}  // namespace ottava::fp8
