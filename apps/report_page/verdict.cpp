#include "apps/report_page/verdict.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/metrics/step_line.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

constexpr std::string_view kLoss = "loss_metrics/global_avg_loss", kValidation = "validation_metrics/loss",
                           kRate = "throughput(tps)", kUtilization = "utilization(%)",
                           kMemory = "memory/max_active(GiB)";

std::vector<double> finite_of(const RunHistory& run, std::string_view name) {
  std::vector<double> out;
  if (const Column* column = run.column(name))
    std::ranges::copy_if(*column, std::back_inserter(out), [](double v) { return std::isfinite(v); });
  return out;
}

// From where the loss came and where it went, which for a run that broke is not its last finite number.
std::string loss_text(const RunHistory& run) {
  const Column* column = run.column(kLoss);
  if (!column) return {};
  const int64_t broken = std::ranges::count_if(*column, [](double v) { return std::isinf(v); });
  const auto known = [](double v) { return std::isfinite(v); };
  const auto last = std::find_if(column->rbegin(), column->rend(), known);
  if (last == column->rend()) return broken > 0 ? "; no logged loss is finite" : "";
  std::string text =
      fmt::format("; loss from {:.3f} to {:.3f}", *std::ranges::find_if(*column, known), *last);
  if (std::any_of(column->rbegin(), last, [](double v) { return std::isinf(v); }))
    return text +
           fmt::format(" at step {}, not finite since", with_commas(run.steps[column->rend() - last - 1]));
  return broken > 0 ? text + fmt::format(", {} not finite", counted(broken, "logged loss", "logged losses"))
                    : text;
}

// Of the second half: when a run has settled.
double settled(const RunHistory& run, std::string_view name) {
  std::vector<double> values = finite_of(run, name);
  if (values.empty()) return 0;
  values.erase(values.begin(), values.begin() + values.size() / 2);
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

std::string state_of(const RunHistory& run, double now) {
  std::string state;
  double last = run.times.back();
  for (const RunEvent& e : run.events) {
    if (e.time >= last) last = e.time;
    if (e.event == "start") state = "open";
    if (e.event == "finished" || e.event == "stopped" || e.event == "failed") state = e.event;
  }
  if (state.empty()) return "ended";
  if (state != "open") return state;
  return now - last < 600 ? "running" : "interrupted";
}

int64_t count_of(const RunHistory& run, std::string_view event) {
  return std::ranges::count_if(run.events, [&](const RunEvent& e) { return e.event == event && !e.is_left; });
}

/// "2 h 05 min", "3 min 20 s", "12 s".
std::string elapsed_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s >= 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

/// The losses of two runs at the steps that both have logged.
struct LossGaps {
  struct Gap {
    int64_t step;
    double relative;  ///< run / baseline - 1
  };
  std::vector<Gap> relative;
  int64_t run_broken = 0, baseline_broken = 0;  ///< steps at which this one's is not finite, the other's is
};
LossGaps gaps_between(const RunHistory& run, const RunHistory& baseline) {
  LossGaps out;
  const Column *mine = run.column(kLoss), *theirs = baseline.column(kLoss);
  for (size_t i = 0, k = 0; mine && theirs && i < run.steps.size() && k < baseline.steps.size();) {
    if (run.steps[i] != baseline.steps[k]) {
      run.steps[i] < baseline.steps[k] ? ++i : ++k;
      continue;
    }
    const double loss = (*mine)[i++], other = (*theirs)[k++];
    out.run_broken += std::isinf(loss) && std::isfinite(other);
    out.baseline_broken += std::isfinite(loss) && std::isinf(other);
    if (std::isfinite(loss) && std::isfinite(other) && other > 0)
      out.relative.push_back({run.steps[i - 1], loss / other - 1});
  }
  return out;
}

/// How far the losses are apart at the end, and where most; the beginning, where all fall, does not count.
std::string gap_text(const std::vector<LossGaps::Gap>& gaps) {
  const size_t tenth = std::max<size_t>(1, gaps.size() / 10);
  double mean = 0;
  for (size_t i = gaps.size() - tenth; i < gaps.size(); ++i) mean += gaps[i].relative / tenth;
  const auto settled_begin = gaps.begin() + (gaps.size() > 10 ? tenth : 0);
  const auto widest = std::max_element(settled_begin, gaps.end(), [](const auto& a, const auto& b) {
    return std::abs(a.relative) < std::abs(b.relative);
  });
  return (std::abs(mean) < 5e-7
              ? "the loss is the same"
              : fmt::format("the loss is {:.2f}% {}", 100 * std::abs(mean), mean > 0 ? "higher" : "lower")) +
         fmt::format(" over the last {}, and the two are furthest apart at step {}, by {:+.2f}%",
                     counted(tenth, "common point"), with_commas(widest->step), 100 * widest->relative);
}

}  // namespace

Verdict verdict_of(const RunHistory& run, double now) {
  Verdict out{.state = state_of(run, now)};
  const std::vector<double> validation = finite_of(run, kValidation);
  const int64_t last = run.steps.back();
  out.headline = run.total_steps > 0
                     ? fmt::format("Step {} of {}", with_commas(last), with_commas(run.total_steps))
                     : fmt::format("Step {}", with_commas(last));
  if (const double seconds = 3600 * hours_of(run).back(); seconds >= 0.5)
    out.headline += fmt::format(" after {} of steps", elapsed_text(seconds));
  out.headline += loss_text(run);
  if (!validation.empty())
    out.headline += fmt::format(", on validation text {:.3f} at best", *std::ranges::min_element(validation));
  auto fact = [&](const char* name, std::string value) { out.facts.emplace_back(name, std::move(value)); };
  if (!run.model.empty()) fact("model", run.model);
  if (!run.ranks.empty()) fact("ran as", run.ranks);
  if (run.tokens.back() > 0) fact("tokens seen", with_commas(static_cast<int64_t>(run.tokens.back())));
  if (const double rate = settled(run, kRate); rate > 0) fact("tokens/s per device", rate_text(rate));
  if (const double used = settled(run, kUtilization); used > 0)
    fact("utilization", fmt::format("{:.1f}%", used));
  if (const std::vector<double> gib = finite_of(run, kMemory); !gib.empty())
    fact("memory of a rank", fmt::format("{:.2f} GiB", gib.back()));
  const std::vector<double> skipped = finite_of(run, "skipped_steps");
  fact("skipped steps", skipped.empty() ? "not logged" : fmt::format("{}", skipped.back()));
  fact("restarts", fmt::format("{}", run.restarts));
  if (const int64_t alerts = count_of(run, "alert"); alerts > 0)
    fact("FP8 alerts", fmt::format("{}", alerts));
  if (out.state == "failed") {
    const auto last = std::find_if(run.events.rbegin(), run.events.rend(),
                                   [](const RunEvent& e) { return e.event == "failed"; });
    fact("failed with", last->text);
  }
  return out;
}

std::string comparison_of(const RunHistory& run, const RunHistory& baseline) {
  const LossGaps gaps = gaps_between(run, baseline);
  std::string text = fmt::format("{} against {}: ", run.name, baseline.name);
  std::string broken;
  for (const auto& [name, count] :
       {std::pair{&run.name, gaps.run_broken}, {&baseline.name, gaps.baseline_broken}})
    if (count > 0)
      broken += fmt::format("; the loss of {} is not finite at {}", *name, counted(count, "common point"));
  if (gaps.relative.empty())
    return text + (broken.empty() ? "they have no logged step in common" : broken.substr(2));
  text += gap_text(gaps.relative) + broken;
  const double rate = settled(run, kRate), other_rate = settled(baseline, kRate);
  if (rate > 0 && other_rate > 0)
    text += fmt::format("; {:.2f} times its tokens/s per device", rate / other_rate);
  const std::vector<double> gib = finite_of(run, kMemory), other_gib = finite_of(baseline, kMemory);
  if (!gib.empty() && !other_gib.empty())
    text += fmt::format("; {:+.2f} GiB of memory", gib.back() - other_gib.back());
  return text;
}

}  // namespace ottava
