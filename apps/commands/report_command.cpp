#include "apps/commands/report_command.h"

#include <fmt/ostream.h>

#include <chrono>
#include <map>
#include <optional>
#include <ostream>
#include <set>

#include "apps/commands/command_line.h"
#include "apps/commands/given_output.h"
#include "apps/report_page/page.h"
#include "core/contains.h"
#include "core/error.h"
#include "core/io/output_file.h"
#include "core/text/counted.h"

namespace ottava {
namespace {

using fmt::print;

constexpr double kLarge = 5e6, kLargest = 25e6;

// Runs with the same name are told apart by their folders, and ranks of one run by their files.
void tell_apart(std::vector<RunHistory>& runs) {
  for (const auto& part : {&RunHistory::folder, &RunHistory::file}) {
    std::multiset<std::string> names;
    for (const RunHistory& run : runs) names.insert(run.name);
    for (RunHistory& run : runs)
      if (names.count(run.name) > 1) run.name = run.*part;
  }
}

struct GivenRuns {
  std::vector<RunHistory> readable;
  std::vector<std::string> unreadable;  ///< why the others are left out
  int baseline = 0;                     ///< among `readable`
};

GivenRuns read_runs(const ReportCommand& command) {
  GivenRuns runs;
  std::map<std::string, std::optional<int>> index_of;  // by file; nothing: not read
  for (const std::string& folder : command.runs) {
    std::optional<int>& index = index_of[metrics_file(folder)];
    try {
      if (!index) {
        runs.readable.push_back(read_run(folder));
        index = static_cast<int>(runs.readable.size()) - 1;
      }
      if (folder == command.baseline) runs.baseline = *index;
    } catch (const FileError& error) {
      // Other runs may be left out, but another baseline would be another comparison.
      if (command.runs.size() == 1 || folder == command.baseline) throw;
      runs.unreadable.emplace_back(error.what());
    }
  }
  if (!command.baseline.empty() && !contains(command.runs, command.baseline))
    fail<ConfigError>("report", "--baseline {} is none of the given runs: write it exactly as in their list",
                      command.baseline);
  if (runs.readable.empty())
    fail<FileError>("report", "no run can be read; the first: {}", runs.unreadable.at(0));
  tell_apart(runs.readable);
  return runs;
}

}  // namespace

void run_report_command(const ReportCommand& command, std::ostream& out) {
  if (command.x != "steps" && command.x != "tokens" && command.x != "hours")
    fail<ConfigError>("report", "--x is '{}', expected steps, tokens or hours", command.x);
  std::vector<std::string> read;
  for (const std::string& run : command.runs) read.push_back(metrics_file(run));
  require_named_output(command.output, read);
  const auto [runs, unreadable, baseline] = read_runs(command);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const std::string page =
      report_page(runs, unreadable, {.baseline = baseline, .x = command.x, .now = now.count()});
  const double bytes = page.size();
  if (bytes > kLargest) {
    fail<FileError>(
        "report",
        "the page would have {:.1f} MB, more than {:.0f} that browsers show well: report fewer runs at once",
        bytes * 1e-6, kLargest * 1e-6);
  }
  write_output_file(command.output, page);
  for (const std::string& text : unreadable) out << "left out: " << text << "\n";
  for (const RunHistory& run : runs)
    for (const std::string& note : run.notes) out << run.name << ": " << note << "\n";
  print(out, "{}: {:.2f} MB, {}{}\n", command.output, bytes * 1e-6, counted(runs.size(), "run"),
        bytes > kLarge ? "; large pages open slowly" : "");
}

void add_report_command(Command& commands) {
  auto o = std::make_shared<ReportCommand>();
  commands
      .subcommand("report",
                  "make one HTML page that compares runs: curves, time, memory, FP8, configurations")
      .required("runs", o->runs, "output folders of runs (job.dump_folder)")
      .option("--output", o->output, "HTML file to write")
      .option("--baseline", o->baseline, "run that the others are compared with (default: the first)")
      .option("--x", o->x, "initial x axis of the curves: steps, tokens or hours")
      .run(o, run_report_command);
}

}  // namespace ottava
