#include "apps/report_page/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <map>

#include "apps/report_page/decimate.h"
#include "apps/report_page/float8_map.h"
#include "apps/report_page/page_assets.h"
#include "apps/report_page/verdict.h"
#include "core/io/json.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "core/text/gib.h"
#include "core/text/listed.h"

namespace ottava {
namespace {

/// A chart of one column of metrics.jsonl; report.js draws them all, in this order.
struct Chart {
  std::string_view key, column, title;
  std::string_view hint = "", unit = "";
  enum class Axis { fitted, from_zero, logarithmic } axis = Axis::fitted;
  std::string_view planned = "";  ///< the figure of planned_of() beside it
  bool only_if_it_varies = false;
};
using Axis = Chart::Axis;
constexpr Chart kCharts[] = {
    {.key = "loss", .column = "loss_metrics/global_avg_loss", .title = "Loss", .hint = "mean over tokens"},
    {.key = "grad_norm",
     .column = "grad_norm",
     .title = "Gradient norm",
     .hint = "before clipping",
     .axis = Axis::logarithmic},
    {.key = "lr", .column = "lr", .title = "Learning rate"},
    {.key = "tps", .column = "throughput(tps)", .title = "Tokens/s", .hint = "per device"},
    {.key = "utilization",
     .column = "utilization(%)",
     .title = "Utilization",
     .hint = "FLOPs as computed, against the peak of each precision",
     .unit = "%",
     .axis = Axis::from_zero},
    {.key = "mfu",
     .column = "mfu(%)",
     .title = "MFU",
     .hint = "conventional: full attention, against the BF16 peak",
     .unit = "%",
     .axis = Axis::from_zero},
    {.key = "step_seconds",
     .column = "time_metrics/end_to_end(s)",
     .title = "Step time",
     .unit = "s",
     .axis = Axis::from_zero,
     .planned = "step_seconds"},
    {.key = "memory",
     .column = "memory/max_active(GiB)",
     .title = "Memory",
     .hint = "highest so far, of a rank",
     .unit = "GiB",
     .axis = Axis::from_zero,
     .planned = "memory"},
    {.key = "data_percent",
     .column = "time_metrics/data_loading(%)",
     .title = "Waiting for data",
     .hint = "of a step",
     .unit = "%",
     .axis = Axis::from_zero},
    {.key = "loss_scale",
     .column = "loss_scale",
     .title = "Loss scale",
     .axis = Axis::logarithmic,
     .only_if_it_varies = true},
};
/// In the chart of the loss, as dots.
constexpr std::string_view kValidationKey = "validation", kValidationColumn = "validation_metrics/loss";

/// Curves of which a run has one per source, text or task go into one chart.
struct ChartGroup {
  std::string_view title, hint, prefix, suffix;
};
constexpr std::array<ChartGroup, 4> kGroups{{
    {"Loss of sources", "mean over the tokens of each", "mixture/", "/loss"},
    {"Loss of validation texts", "", "validation_metrics/", "/loss"},
    {"Questions answered", "share of each task", "evaluation_metrics/", "/acc"},
    {"Questions answered, by length", "share of each task; answers weighed by their length",
     "evaluation_metrics/", "/acc_norm"},
}};
// What the group calls a column; empty if the column is not in the group.
std::string_view name_in(const ChartGroup& group, std::string_view column) {
  if (column.size() <= group.prefix.size() + group.suffix.size() || !column.starts_with(group.prefix) ||
      !column.ends_with(group.suffix))
    return {};
  return column.substr(group.prefix.size(), column.size() - group.prefix.size() - group.suffix.size());
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Six digits are more than a screen shows.
Json rounded(double value) {
  return std::isfinite(value) ? Json(std::stod(fmt::format("{:.6g}", value))) : Json();
}

Json array_of(const Column& values) {
  Json out{Json::Array{}};
  for (const double v : values) out.push(rounded(v));
  return out;
}

Json series_of(const Points& points) {
  Json out;
  out.set("last", array_of(points.last));
  if (!points.gaps.empty()) {
    Json gaps{Json::Array{}};
    for (const bool is_gap : points.gaps) gaps.push(is_gap);
    out.set("gaps", std::move(gaps));
  }
  if (points.least.empty()) return out;
  out.set("min", array_of(points.least)).set("max", array_of(points.most));
  return out;
}

Json axes_of(const RunHistory& run, const std::vector<std::pair<size_t, size_t>>& buckets) {
  const Column hours = hours_of(run);
  Json steps{Json::Array{}}, tokens{Json::Array{}}, time{Json::Array{}};
  for (const auto& [begin, end] : buckets) {
    steps.push(run.steps[end - 1]);
    tokens.push(Json(static_cast<int64_t>(std::llround(run.tokens[end - 1]))));
    time.push(rounded(hours[end - 1]));
  }
  Json out;
  return out.set("steps", std::move(steps)).set("tokens", std::move(tokens)).set("hours", std::move(time));
}

std::string time_text(double unix_seconds) {
  if (unix_seconds <= 0) return "";
  const auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc)};
}

// In the order of steps. Of very many, saves and then those in the middle are only counted: how a run began
// and ended is worth more.
Json events_of(const RunHistory& run) {
  constexpr size_t kMost = 500;
  std::vector<RunEvent> events = run.events;
  for (const auto& [step, text] : run.non_finite) events.push_back({.step = step, .text = text});
  std::ranges::stable_sort(events, {}, &RunEvent::step);
  size_t saves = 0;
  if (events.size() > kMost)
    saves = std::erase_if(events, [](const RunEvent& e) { return e.event == "saved"; });
  if (events.size() > kMost) {
    const size_t left_out = events.size() - kMost;
    const auto middle = events.begin() + kMost / 2;
    *middle = {.step = middle->step, .text = fmt::format("and {} more", with_commas(left_out + 1))};
    events.erase(middle + 1, middle + 1 + left_out);
  }
  if (saves > 0)
    events.push_back(
        {.step = run.steps.back(), .text = counted(saves, "save is not listed", "saves are not listed")});
  Json out{Json::Array{}};
  for (const RunEvent& e : events) {
    const std::string_view colon = e.event.empty() || e.text.empty() ? "" : ": ",
                           left = e.is_left ? " (the run later went back behind this step)" : "";
    out.push(Json()
                 .set("step", e.step)
                 .set("when", time_text(e.time))
                 .set("text", fmt::format("{}{}{}{}", e.event, colon, e.text, left)));
  }
  return out;
}

Json planned_of(const RunHistory& run) {
  Json categories{Json::Array{}};
  for (const auto& [name, bytes] : run.planned_memory)
    categories.push(Json::Array{name, rounded(gib(bytes))});
  Json out;
  if (run.planned_seconds > 0) out.set("step_seconds", rounded(run.planned_seconds));
  return out.set("memory", rounded(gib(run.planned_bytes))).set("categories", std::move(categories));
}

Json trace_of(const TracedTime& trace) {
  Json operations{Json::Array{}};
  for (const TracedTime::Operation& o : trace.operations) {
    operations.push(Json()
                        .set("name", o.name)
                        .set("ms", rounded(o.milliseconds))
                        .set("flops", rounded(o.flops))
                        .set("bytes", rounded(o.bytes))
                        .set("call", o.is_call));
  }
  return Json()
      .set("about", trace.about)
      .set("split", Json()
                        .set("total", trace.split.total)
                        .set("compute", trace.split.compute)
                        .set("communication", trace.split.communication)
                        .set("exposed", trace.split.exposed)
                        .set("idle", trace.split.idle))
      .set("operations", std::move(operations));
}

bool has_numbers(const Column* column) {
  return column && std::ranges::any_of(*column, [](double v) { return std::isfinite(v); });
}

Json charts_of(const std::vector<RunHistory>& runs) {
  const bool validates = std::ranges::any_of(
      runs, [](const RunHistory& run) { return has_numbers(run.column(kValidationColumn)); });
  Json out{Json::Array{}};
  for (const Chart& chart : kCharts) {
    Json json;
    json.set("key", std::string(chart.key)).set("title", std::string(chart.title));
    const bool is_loss = chart.key == "loss";
    json.set("hint", std::string(chart.hint) + (is_loss && validates ? "; dots: validation text" : ""));
    if (!chart.unit.empty()) json.set("unit", std::string(chart.unit));
    if (chart.axis == Chart::Axis::from_zero) json.set("zero", true);
    if (chart.axis == Chart::Axis::logarithmic) json.set("log", true);
    if (!chart.planned.empty()) json.set("planned", std::string(chart.planned));
    if (chart.only_if_it_varies) json.set("whenVaries", true);
    if (is_loss) json.set("also", std::string(kValidationKey)).set("wide", true);
    out.push(std::move(json));
  }
  return out;
}

Json groups_of(const std::vector<RunHistory>& runs) {
  Json out{Json::Array{}};
  for (const ChartGroup& group : kGroups) {
    std::map<std::string, std::string> names;
    for (const RunHistory& run : runs) {
      for (const auto& [column, values] : run.columns)
        if (const std::string_view name = name_in(group, column); !name.empty()) names.emplace(column, name);
    }
    if (names.empty()) continue;
    Json keys{Json::Array{}};
    for (const auto& [column, name] : names) keys.push(Json::Array{column, name});
    out.push(Json()
                 .set("title", std::string(group.title))
                 .set("hint", std::string(group.hint))
                 .set("keys", std::move(keys)));
  }
  return out;
}

Json run_json(const RunHistory& run, size_t points) {
  const auto buckets = buckets_of(run.steps.size(), points);
  Json out, series;
  auto add = [&](std::string_view key, const Column* column) {
    if (has_numbers(column)) series.set(std::string(key), series_of(decimate(*column, buckets)));
  };
  for (const Chart& chart : kCharts) add(chart.key, run.column(chart.column));
  add(kValidationKey, run.column(kValidationColumn));
  for (const auto& [name, column] : run.columns) {
    const auto shows = [&name = name](const ChartGroup& group) { return !name_in(group, name).empty(); };
    if (std::ranges::any_of(kGroups, shows)) add(name, &column);
  }
  out.set("name", run.name).set("x", axes_of(run, buckets)).set("series", std::move(series));
  if (run.planned_bytes > 0) out.set("planned", planned_of(run));
  if (run.trace) out.set("trace", trace_of(*run.trace));
  if (Json map = float8_map(run); !map.is_null()) out.set("fp8", std::move(map));
  out.set("events", events_of(run));
  if (!run.stages.empty()) {
    out.set(
        "pipeline",
        Json().set("schedule", run.schedule).set("ranks", Json::Array(run.stages.begin(), run.stages.end())));
  }
  if (run.config.empty()) return out;
  Json config;
  for (const auto& [key, value] : run.config) config.set(key, value);
  return out.set("config", std::move(config));
}

std::string verdict_html(const RunHistory& run, size_t index, double now) {
  const Verdict v = verdict_of(run, now);
  std::string html = fmt::format(
      "<section class=\"card verdict\" id=\"run-{}\"><div><span class=\"name\">{}</span><span class=\"state "
      "{}\">{}</span></div><div class=\"headline\">{}</div><dl class=\"facts\">",
      index, escaped(run.name), v.state, v.state, escaped(v.headline));
  for (const auto& [name, value] : v.facts)
    html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
  html += "</dl>";
  if (!run.notes.empty()) {
    html += "<ul class=\"notes\">";
    for (const std::string& note : run.notes) html += fmt::format("<li>{}</li>", escaped(note));
    html += "</ul>";
  }
  return html + "</section>\n";
}

std::string decimation_text(const std::vector<RunHistory>& runs, size_t points) {
  size_t most = 0;
  for (const RunHistory& run : runs) most = std::max(most, run.steps.size());
  if (most <= points) return "Curves show every logged step.";
  return fmt::format(
      "Of runs with more than {} logged steps, a point is the last of several steps, and the shade around it "
      "reaches from the least to the most of them: no spike is lost.",
      points);
}

}  // namespace

std::string report_page(const std::vector<RunHistory>& runs, const std::vector<std::string>& unreadable,
                        const PageOptions& options) {
  constexpr size_t kLeastPoints = 100, kMostPoints = 1000;  // of a curve
  constexpr size_t kAllPoints = 12000;                      // of the curves of all runs in one chart
  const size_t points = std::clamp(kAllPoints / std::max<size_t>(1, runs.size()), kLeastPoints, kMostPoints);
  const std::string names = listed(runs, [](const RunHistory& run) { return run.name; });
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">";
  html += fmt::format("<title>{} - ottava report</title>\n<style>\n{}\n{}</style></head>\n<body><main>\n",
                      escaped(names), kDygraphsStyle, kReportStyle);
  html += fmt::format("<header><h1>{}</h1><p>ottava report, {}</p></header>\n<div class=\"verdicts\">\n",
                      escaped(runs.size() == 1 ? runs[0].name : counted(runs.size(), "run")),
                      time_text(options.now));
  for (size_t i = 0; i < runs.size(); ++i) html += verdict_html(runs[i], i, options.now);
  for (const std::string& text : unreadable)
    html += fmt::format(
        "<section class=\"card verdict\"><div><span class=\"state "
        "unreadable\">unreadable</span></div><div>{}</div></section>\n",
        escaped(text));
  html += "</div>\n";
  if (runs.size() > 1) {
    html += "<section class=\"card comparison\">";
    const size_t baseline = options.baseline;
    for (size_t i = 0; i < runs.size(); ++i)
      if (i != baseline) html += fmt::format("<p>{}.</p>", escaped(comparison_of(runs[i], runs[baseline])));
    html += "</section>\n";
  }
  html += fmt::format(
      "<div class=\"tools\" id=\"tools\"></div>\n<h2>Curves</h2><p class=\"dim\" style=\"margin:-6px 0 "
      "10px;font-size:13px\">{}</p>\n"
      "<noscript><p>Curves and tables need JavaScript, which this page holds itself: nothing is "
      "loaded.</p></noscript>\n"
      "<div class=\"charts\" id=\"charts\"></div>\n<div id=\"sections\"></div>\n",
      decimation_text(runs, points));
  html += fmt::format(
      "<footer>Made by ottava; nothing on this page was loaded from elsewhere. Curves are drawn by dygraphs."
      "<details><summary>its license</summary><pre>{}</pre></details></footer>\n</main>\n",
      escaped(kDygraphsLicense));
  Json data, all{Json::Array{}};
  for (const RunHistory& run : runs) all.push(run_json(run, points));
  data.set("x", options.x)
      .set("charts", charts_of(runs))
      .set("groups", groups_of(runs))
      .set("runs", std::move(all));
  std::string island = data.dump();
  for (size_t at = 0; (at = island.find('<', at)) != std::string::npos; at += 6)
    island.replace(at, 1, "\\u003c");
  return html + "<script type=\"application/json\" id=\"data\">" + island + "</script>\n<script>" +
         std::string(kDygraphsScript) + "</script>\n<script>" + std::string(kReportScript) +
         "</script>\n</body></html>\n";
}

}  // namespace ottava
