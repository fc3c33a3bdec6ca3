#include "apps/commands/trace_command.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands/command_line.h"
#include "apps/commands/given_output.h"
#include "core/io/file.h"
#include "core/io/folder.h"
#include "core/io/gzip.h"
#include "core/io/json.h"
#include "core/io/output_file.h"
#include "core/text/counted.h"
#include "core/text/listed.h"
#include "core/text/number.h"
#include "core/trace/chrome_trace.h"
#include "core/trace/time_split.h"

namespace ottava {
namespace {

using fmt::print;

namespace fs = std::filesystem;

struct RankFile {
  std::string path, text, host;
  int64_t world_size = 0;  ///< ranks of the run
  int64_t origin_ns = 0;   ///< where the timeline of the run begins: the same for all of its ranks
  TimeSplit split;
};

Interval interval_of(const Json& event, const std::string& path) {
  auto ns = [&](const char* name) { return std::llround(event.at(name, path).as_number(path) * 1e3); };
  const int64_t begin = ns("ts");
  return {begin, begin + ns("dur")};
}

// What tools make of it: slices of category kernel, apart by name.
TimeSplit split_of_events(const Json& file, const std::string& path) {
  std::vector<Interval> compute, communication;
  for (const Json& event : file.at("traceEvents", path).as_array(path)) {
    const Json* category = event.find("cat");
    if (!category || category->as_string(path) != "kernel") continue;
    const bool is_call = event.at("name", path).as_string(path).starts_with("nccl");
    (is_call ? communication : compute).push_back(interval_of(event, path));
  }
  return split_time(compute, communication);
}

/// rankN_trace.json.gz: others, such as all ranks merged, would count as one of them.
bool is_of_one_rank(std::string_view name) {
  constexpr std::string_view kBegin = "rank", kEnd = "_trace.json.gz";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  name.remove_prefix(kBegin.size());
  return parse_number<int64_t>(name.substr(0, name.size() - kEnd.size())).has_value();
}

std::map<int64_t, RankFile> read_ranks(const std::string& folder) {
  std::map<int64_t, RankFile> ranks;
  for (const std::string& name : names_in(folder)) {
    if (!is_of_one_rank(name)) continue;
    const std::string path = (fs::path(folder) / name).string();
    RankFile file{.path = path, .text = gunzip(read_file(path), path)};
    const Json json = Json::parse(file.text, path);
    const Json& about = json.at("ottava", path);
    if (const int64_t schema = about.at("schema", path).as_integer(path); schema != 1)
      fail<FileError>("trace", "{} has schema {}, but this program reads schema 1", path, schema);
    file.host = about.at("host", path).as_string(path);
    file.split = split_of_events(json, path);
    const Json& place = json.at("distributedInfo", path);
    file.world_size = place.at("world_size", path).as_integer(path);
    file.origin_ns = json.at("baseTimeNanoseconds", path).as_integer(path);
    ranks[place.at("rank", path).as_integer(path)] = std::move(file);
  }
  if (ranks.empty()) {
    fail<FileError>("trace",
                    "{} has no rankN_trace.json.gz: give an iteration_N folder of the run's profile_traces, "
                    "which profiling.enable_profiling writes",
                    folder);
  }
  return ranks;
}

std::string rank_list(const std::vector<int64_t>& ranks) {
  constexpr size_t kNamed = 8;
  return listed(
      ranks, [](int64_t rank) { return std::to_string(rank); }, kNamed);
}

// Takes away the ranks of an earlier run, which the last one, with fewer ranks or other profile_ranks, has
// left there: their times are not those of the others. Empty if there is none.
std::string remove_of_earlier_runs(std::map<int64_t, RankFile>& ranks) {
  const auto origin = [](const auto& rank) { return rank.second.origin_ns; };
  const int64_t last = origin(*std::ranges::max_element(ranks, {}, origin));
  std::vector<int64_t> earlier;
  for (const auto& [rank, file] : ranks)
    if (file.origin_ns != last) earlier.push_back(rank);
  std::erase_if(ranks, [&](const auto& rank) { return origin(rank) != last; });
  if (earlier.empty()) return "";
  return fmt::format("Left out as of an earlier run in this folder: {} {}\n",
                     earlier.size() == 1 ? "rank" : "ranks", rank_list(earlier));
}

// Ranks may have written their files on machines of their own, or none (profiling.profile_ranks). Empty if
// none is missing.
std::string missing_text(const std::map<int64_t, RankFile>& ranks) {
  const int64_t world_size = ranks.begin()->second.world_size;
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < world_size; ++rank)
    if (!ranks.contains(rank)) missing.push_back(rank);
  if (missing.empty()) return "";
  return fmt::format("Only {} of the run's {} have a trace in this folder; {} {} missing\n", ranks.size(),
                     counted(world_size, "rank"), missing.size() == 1 ? "rank" : "ranks",
                     rank_list(missing) + (missing.size() == 1 ? " is" : " are"));
}

}  // namespace

void run_trace_command(const TraceCommand& command, std::ostream& out) {
  std::vector<std::string> read;
  for (const std::string& name : names_in(command.folder))
    if (is_of_one_rank(name)) read.push_back((fs::path(command.folder) / name).string());
  require_named_output(command.merged, read);
  std::map<int64_t, RankFile> ranks = read_ranks(command.folder);
  const std::string earlier = remove_of_earlier_runs(ranks);
  print(out, "{:>5} {:>12} {:>10} {:>15} {:>10} {:>8}  {}\n", "rank", "ms", "compute", "communication",
        "exposed", "idle", "host");
  for (const auto& [rank, file] : ranks) {
    const TimeSplit& s = file.split;
    auto percent = [&](int64_t part) {
      return fmt::format("{:.1f}%", s.total > 0 ? 100.0 * part / s.total : 0);
    };
    print(out, "{:>5} {:>12.3f} {:>10} {:>15} {:>10} {:>8}  {}\n", rank, s.total * 1e-6, percent(s.compute),
          percent(s.communication), percent(s.exposed), percent(s.idle), file.host);
  }
  out << "exposed: communication while nothing is computed; compute + exposed + idle are the whole\n";
  const std::string missing = missing_text(ranks);
  out << earlier << missing;
  if (command.merged.empty()) return;
  std::vector<TraceFile> files;
  for (auto& [rank, file] : ranks) files.push_back({file.path, std::move(file.text)});
  const std::string text = merged_traces(files);
  write_output_file(command.merged, command.merged.ends_with(".gz") ? gzip(text, command.merged) : text);
  print(out, "{}: {} (open it at https://ui.perfetto.dev)\n",
        missing.empty() ? "All ranks" : "The ranks that have one", command.merged);
}

void add_trace_command(Command& commands) {
  auto o = std::make_shared<TraceCommand>();
  commands
      .subcommand("trace",
                  "show where the time of traced steps went on each rank, or merge the traces of all ranks")
      .required("folder", o->folder, "folder iteration_N in a run's profile_traces")
      .option("--merge", o->merged,
              "merge the traces of all ranks into this file, for Perfetto (.json or .json.gz)")
      .run(o, run_trace_command);
}

}  // namespace ottava
