#include "apps/report_page/run_history.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>

#include "apps/report/run_events.h"
#include "core/config/source.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/gzip.h"
#include "core/metrics/step_line.h"
#include "core/text/counted.h"
#include "core/text/listed.h"

namespace ottava {
namespace {

namespace fs = std::filesystem;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

constexpr std::string_view kCut = "cut";  // an event that metrics tell of, not a line of events.jsonl

// Calls body(json) for each whole line; others are noted. Throws FileError if the file is there but cannot be
// opened.
template <class Body>
void read_lines(const std::string& path, std::vector<std::string>& notes, const Body& body) {
  if (!is_there(path)) return;
  std::ifstream file(path);
  if (!file) fail<FileError>("report", "cannot read {}: {}", path, std::strerror(errno));
  const std::string name = fs::path(path).filename().string();
  std::string line;
  int64_t number = 0, bad = 0, first_bad = 0;
  while (std::getline(file, line)) {
    ++number;
    const bool is_torn = file.eof();
    if (line.empty()) continue;
    try {
      body(Json::parse(line, name));
    } catch (const Error&) {  // ConfigError, too, of a configuration in it
      if (is_torn) {
        notes.push_back(fmt::format(
            "the last line of {} is incomplete: the run was killed while writing it, or is writing it now",
            name));
      } else if (bad++ == 0) {
        first_bad = number;
      }
    }
  }
  if (file.bad())
    notes.push_back(fmt::format("{} cannot be read past line {}: {}", name, number, std::strerror(errno)));
  if (bad > 0)
    notes.push_back(fmt::format("{} of {} left out, the first is line {}", counted(bad, "unreadable line"),
                                name, first_bad));
}

/// Lines of metrics into columns.
class MetricsReader {
 public:
  explicit MetricsReader(RunHistory& run) : run_(run) {}

  void add(const Json& json) {
    const int64_t step = json.at("step", "line").as_integer("step");
    // Validation has a line of its own, after the step's.
    if (run_.steps.empty() || step != run_.steps.back()) begin(step);
    const Json* non_finite = json.find("non_finite");
    for (const auto& [name, value] : json.as_object("line")) {
      if (name == "step" || name == "non_finite" || value.is_array()) continue;
      if (name == "time") {
        if (value.is_number()) run_.times.back() = value.as_number(name);
        continue;
      }
      Column& column = column_of(name);
      column.back() = value.is_number() ? value.as_number(name) : value.is_null() ? kInfinity : kNaN;
      if (value.is_null() && !name.starts_with("fp8/")) {
        const Json* what = non_finite ? non_finite->find(name) : nullptr;
        run_.non_finite.emplace_back(
            step, fmt::format("{} is {}", name,
                              what && what->is_string() ? what->as_string(name) : "not a number"));
      }
    }
  }

 private:
  void begin(int64_t step) {
    const size_t kept = std::ranges::lower_bound(run_.steps, step) - run_.steps.begin();
    if (kept < run_.steps.size()) cut(kept, step);
    run_.steps.push_back(step);
    run_.times.push_back(run_.times.empty() ? 0 : run_.times.back());
    for (auto& [name, column] : run_.columns) column.push_back(kNaN);
  }
  void cut(size_t kept, int64_t step) {
    run_.events.push_back(
        {0, step - 1, std::string(kCut),
         fmt::format("resumed from here; the steps {} to {} recorded earlier no longer count", step,
                     run_.steps.back())});
    run_.steps.resize(kept);
    run_.times.resize(kept);
    for (auto& [name, column] : run_.columns) column.resize(kept);
    std::erase_if(run_.non_finite, [&](const auto& entry) { return entry.first >= step; });
  }
  Column& column_of(const std::string& name) {
    const auto found = run_.columns.find(name);
    if (found != run_.columns.end()) return found->second;
    return run_.columns.emplace(name, Column(run_.steps.size(), kNaN)).first->second;
  }

  RunHistory& run_;
};

void flatten(const config::Value& value, const std::string& path, std::map<std::string, std::string>& out) {
  if (value.kind == config::Value::Kind::table) {
    for (const config::Member& m : value.members)
      flatten(m.value, path.empty() ? m.key : path + "." + m.key, out);
    return;
  }
  if (value.kind != config::Value::Kind::list) {
    out[path] = value.text;
    return;
  }
  std::string text;
  for (const config::Value& item : value.items) {
    std::map<std::string, std::string> inner;
    flatten(item, "", inner);
    for (const auto& [key, t] : inner) add_item(text, key.empty() ? t : key + "=" + t);
  }
  out[path] = "[" + text + "]";
}

// "pp 2 x cp 2" of "pp 2 x dp_replicate 1 x dp_shard 1 x cp 2 x tp 1 = 4".
std::string axes_text(std::string_view mesh) {
  std::string out;
  mesh = mesh.substr(0, mesh.find(" = "));
  for (size_t at = 0; at < mesh.size();) {
    const size_t end = std::min(mesh.find(" x ", at), mesh.size());
    const std::string_view axis = mesh.substr(at, end - at);
    if (!axis.ends_with(" 1")) add_item(out, axis, " x ");
    at = end + 3;
  }
  return out;
}

void take_start(const Json& json, RunHistory& run) {
  const std::string where = "events.jsonl";
  const int64_t schema = json.at("schema", where).as_integer("schema");
  if (schema != RunEvents::kSchema) {
    run.notes.push_back(fmt::format(
        "events.jsonl has schema {}, but this program reads {}: its plan and configuration are left out",
        schema, RunEvents::kSchema));
    return;
  }
  run.total_steps = json.at("steps", where).as_integer("steps");
  run.model = fmt::format("{}, {} parameters", json.at("model", where).as_string("model"),
                          with_commas(json.at("parameters", where).as_integer("parameters")));
  const std::string axes = axes_text(json.at("mesh", where).as_string("mesh"));
  run.ranks = fmt::format("{}{} on {}", counted(json.at("ranks", where).as_integer("ranks"), "rank"),
                          axes.empty() ? "" : fmt::format(" ({})", axes),
                          json.at("device", where).as_string("device"));
  run.schedule.clear();
  run.stages.clear();
  if (const Json* pipeline = json.find("pipeline")) {
    run.schedule = pipeline->at("schedule", where).as_string("schedule");
    for (const Json& rank : pipeline->at("ranks", where).as_array("ranks"))
      run.stages.push_back(rank.as_string("rank"));
  }
  const Json& plan = json.at("plan", where);
  run.planned_bytes = plan.at("memory_bytes", where).as_number("memory_bytes");
  if (const Json* seconds = plan.find("step_seconds"))
    run.planned_seconds = seconds->as_number("step_seconds");
  run.planned_memory.clear();
  for (const auto& [category, bytes] : plan.at("memory", where).as_object("memory"))
    run.planned_memory.emplace_back(category, bytes.as_number(category));
  run.config.clear();
  flatten(config::parse_yaml(json.at("config", where).as_string("config"), where), "", run.config);
}

void read_events(const std::string& folder, RunHistory& run) {
  int starts = 0;
  read_lines((fs::path(folder) / "events.jsonl").string(), run.notes, [&](const Json& json) {
    const std::string& name = json.at("event", "line").as_string("event");
    const int64_t step = json.at("step", "line").as_integer("step");
    const bool is_start = name == "start";
    for (RunEvent& e : run.events) e.is_left |= is_start && e.step > step && e.event != kCut;
    run.events.push_back(
        {json.at("time", "line").as_number("time"), step, name, json.at("text", "line").as_string("text")});
    if (!is_start) return;
    ++starts;
    take_start(json, run);
  });
  run.restarts = std::max(0, starts - 1);
}

/// Sums over the slices of a trace: kernels, the benchmark's labels, and calls by axis. Of each the mean per
/// step.
class TracedSums {
 public:
  TracedSums(const std::string& path, double steps) : path_(path), steps_(steps) {}

  void add(const Json& event) {
    const Json* category = event.find("cat");
    if (!category) return;
    const std::string& kind = category->as_string(path_);
    if (kind != "kernel" && kind != "operation") return;
    const std::string& name = event.at("name", path_).as_string(path_);
    const Json& args = event.at("args", path_);
    const bool is_call = name.starts_with("nccl");
    const std::string label = is_call ? label_of_call(args) : name;
    TracedTime::Operation& sum = sums_[label];
    sum.name = label;
    sum.is_call = is_call;
    if (const Json* flops = args.find("planned FLOPs")) {
      sum.flops += flops->as_number(path_) / steps_;
      sum.bytes += args.at("planned bytes", path_).as_number(path_) / steps_;
    }
    if (kind != "kernel") return;
    const int64_t begin = std::llround(event.at("ts", path_).as_number(path_) * 1e3),
                  length = std::llround(event.at("dur", path_).as_number(path_) * 1e3);
    sum.milliseconds += length * 1e-6 / steps_;
    if (is_call) sum.bytes += args.at("sent bytes", path_).as_number(path_) / steps_;
    (is_call ? communication_ : compute_).push_back({begin, begin + length});
    end_ = std::max(end_, begin + length);
  }
  int64_t end_ns() const { return end_; }
  TimeSplit split() const { return split_time(compute_, communication_); }
  /// The longest first.
  std::vector<TracedTime::Operation> operations() && {
    std::vector<TracedTime::Operation> out;
    for (auto& [name, sum] : sums_) out.push_back(std::move(sum));
    std::ranges::sort(out, std::greater{}, &TracedTime::Operation::milliseconds);
    return out;
  }

 private:
  std::string label_of_call(const Json& args) const {
    return fmt::format("{} ({})", args.at("Collective name", path_).as_string(path_),
                       args.at("Process Group Name", path_).as_string(path_));
  }

  const std::string& path_;
  double steps_;
  std::map<std::string, TracedTime::Operation> sums_;
  std::vector<Interval> compute_, communication_;
  int64_t end_ = 0;
};

TracedTime traced_time(const std::string& path) {
  const Json json = Json::parse(gunzip(read_file(path), path), path);
  const Json& about = json.at("ottava", path);
  if (about.at("schema", path).as_integer(path) != 1)
    fail<FileError>("trace", "{} has a schema other than 1", path);
  const Json::Array& steps = about.at("steps", path).as_array(path);
  if (steps.empty()) fail<FileError>("trace", "{} names no steps", path);
  TracedSums sums(path, steps.size());
  for (const Json& event : json.at("traceEvents", path).as_array(path)) sums.add(event);
  TracedTime out{.split = sums.split()};
  if (const Json* origin = json.find("baseTimeNanoseconds"))
    out.end = (origin->as_number(path) + sums.end_ns()) * 1e-9;
  const int64_t first = steps.front().as_integer(path), last = steps.back().as_integer(path);
  out.about = fmt::format(
      "Rank 0 in {}, from {}",
      first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last), path);
  out.operations = std::move(sums).operations();
  return out;
}

// When the run last began with a step before this one: a trace from before that is of another run in the
// folder, or of steps that were left. 0: not known.
double begin_of(const RunHistory& run, int64_t step) {
  const auto start = std::find_if(run.events.rbegin(), run.events.rend(),
                                  [&](const RunEvent& e) { return e.event == "start" && e.step < step; });
  return start == run.events.rend() ? 0 : start->time;
}

void read_trace(const std::string& folder, RunHistory& run) {
  const auto named = run.config.find("profiling.save_traces_folder");
  const fs::path traces = fs::path(folder) / (named == run.config.end() ? "profile_traces" : named->second);
  std::set<int64_t, std::greater<>> steps;
  std::error_code error;
  for (fs::directory_iterator it(traces, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    constexpr std::string_view kPrefix = "iteration_";
    std::error_code unknown;  // what may be there is told when it is read
    if (!name.starts_with(kPrefix) || (!fs::exists(it->path() / "rank0_trace.json.gz", unknown) && !unknown))
      continue;
    const std::string digits = name.substr(kPrefix.size());
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos)
      continue;
    steps.insert(std::stoll(digits));
  }
  if (error && error != std::errc::no_such_file_or_directory)
    run.notes.push_back(
        fmt::format("traces may be left out: cannot list {}: {}", traces.string(), error.message()));
  for (const int64_t step : steps) {
    const std::string path = (traces / fmt::format("iteration_{}", step) / "rank0_trace.json.gz").string();
    try {
      TracedTime trace = traced_time(path);
      if (trace.end > 0 && trace.end < begin_of(run, step)) continue;
      run.trace = std::move(trace);
    } catch (const FileError& problem) {
      run.notes.push_back(fmt::format("the trace is left out: {}", problem.what()));
    }
    return;
  }
}

}  // namespace

const Column* RunHistory::column(std::string_view name) const {
  const auto found = columns.find(name);
  return found == columns.end() ? nullptr : &found->second;
}

Column interpolated(const std::vector<int64_t>& steps, Column values) {
  const auto known = [](double value) { return std::isfinite(value); };
  auto before = std::ranges::find_if(values, known);
  std::fill(values.begin(), before, 0);
  while (before != values.end()) {
    const auto after = std::find_if(before + 1, values.end(), known);
    const auto step = [&](auto at) { return static_cast<double>(steps[at - values.begin()]); };
    for (auto at = before + 1; at != after; ++at) {
      *at = *before;
      if (after != values.end())
        *at += (*after - *before) * (step(at) - step(before)) / (step(after) - step(before));
    }
    before = after;
  }
  return values;
}

Column hours_of(const RunHistory& run) {
  const Column* seconds = run.column("time_metrics/end_to_end(s)");
  Column hours(run.steps.size(), kNaN);
  double sum = 0;
  std::optional<int64_t> before;
  // A line has the mean of the steps since the line before it that has one: validation's, in between, have
  // none.
  for (size_t i = 0; seconds && i < run.steps.size(); ++i) {
    if (!std::isfinite((*seconds)[i])) continue;
    // The first line of a file counts only its own step.
    sum += (*seconds)[i] * (before ? run.steps[i] - *before : 1) / 3600;
    before = run.steps[i];
    hours[i] = sum;
  }
  return interpolated(run.steps, std::move(hours));
}

std::string metrics_file(const std::string& given) {
  std::error_code unknown;  // what is not there is told when it is read
  const fs::path path =
      fs::is_regular_file(given, unknown) ? fs::path(given) : fs::path(given) / "metrics.jsonl";
  const fs::path canonical = fs::weakly_canonical(path, unknown);
  return (unknown ? path : canonical).string();
}

RunHistory read_run(const std::string& given) {
  std::error_code unknown;
  const bool is_file = fs::is_regular_file(given, unknown);
  fs::path folder = is_file ? fs::path(given).parent_path() : fs::path(given);
  if (is_file && folder.empty()) folder = ".";
  if (!is_there(folder.string()) || !fs::is_directory(folder, unknown))
    fail<FileError>("report", "'{}' is not the folder of a run: give its job.dump_folder", given);
  RunHistory run{.folder = folder.string()};
  const fs::path named = fs::absolute(folder).lexically_normal();
  run.name = (named.has_filename() ? named : named.parent_path()).filename().string();
  const std::string path = is_file ? given : (folder / "metrics.jsonl").string();
  if (!is_there(path)) {
    fail<FileError>(
        "report",
        "{} has no metrics.jsonl: give the job.dump_folder of a run with metrics.enable_json_lines: true",
        folder.string());
  }
  run.file = path;
  MetricsReader metrics(run);
  read_lines(path, run.notes, [&](const Json& json) { metrics.add(json); });
  if (run.steps.empty()) {
    fail<FileError>("report",
                    "{} has no complete line: the run has not logged a step yet (metrics.log_freq){}", path,
                    run.notes.empty() ? "" : "; " + run.notes[0]);
  }
  const Column* tokens = run.column("n_tokens_seen");
  run.tokens = interpolated(run.steps, tokens ? *tokens : Column(run.steps.size(), kNaN));
  try {
    read_events(run.folder, run);
  } catch (const FileError& problem) {
    run.notes.push_back(fmt::format("events are left out: {}", problem.what()));
  }
  read_trace(run.folder, run);
  return run;
}

}  // namespace ottava
