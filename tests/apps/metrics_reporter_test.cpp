#include "apps/metrics_reporter.h"

#include <cstdlib>
#include <filesystem>

#include "core/io/file.h"
#include "core/log.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

/// What two ranks leave in a folder after one logged step: rank r took r + 1 seconds.
void report_two_ranks(const std::string& folder, bool all_ranks) {
  log::set_level(log::Level::warning);
  for (int rank : {0, 1}) {
    MetricsConfig config;
    config.enable_tensorboard = true;
    config.save_for_all_ranks = all_ranks;
    MetricsReporter reporter(
        {.config = config, .folder = folder, .total_steps = 2, .rank = rank, .world_size = 2});
    StepMetrics m;
    m.step = 1;
    m.step_seconds = rank + 1;
    reporter.log_step(m);
    reporter.flush();
  }
}

int64_t files_in(const std::string& folder) {
  return fs::exists(folder) ? std::distance(fs::directory_iterator(folder), fs::directory_iterator()) : 0;
}

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("rank 0 alone writes metrics, unless save_for_all_ranks asks for files of every rank") {
  TemporaryFolder folder;
  report_two_ranks(folder / "first", false);
  CHECK(files_in(folder / "first") == 2);  // metrics.jsonl and tb
  CHECK_THAT(read_file(folder / "first/metrics.jsonl"), Contains("\"time_metrics/end_to_end(s)\":1"));
  CHECK(files_in(folder / "first/tb") == 1);
  CHECK_FALSE(fs::is_directory(*fs::directory_iterator(folder / "first/tb")));

  report_two_ranks(folder / "all", true);
  CHECK(files_in(folder / "all") == 3);
  CHECK_THAT(read_file(folder / "all/metrics.jsonl"), Contains("\"time_metrics/end_to_end(s)\":1"));
  CHECK_THAT(read_file(folder / "all/metrics.rank1.jsonl"), Contains("\"time_metrics/end_to_end(s)\":2"));
  for (const char* rank : {"rank_0", "rank_1"}) CHECK(files_in(folder / "all/tb/" + rank) == 1);
}

TEST_CASE("colours are for the terminal of one process that did not ask for plain text") {
  Environment no_color("NO_COLOR", nullptr), terminal("TERM", "xterm");
  MetricsConfig config;
  CHECK(prints_colors(config, 1, true));
  CHECK_FALSE(prints_colors(config, 1, false));
  CHECK_FALSE(prints_colors(config, 2, true));
  {
    Environment empty("NO_COLOR", "");
    CHECK(prints_colors(config, 1, true));
  }
  {
    Environment set("NO_COLOR", "1");
    CHECK_FALSE(prints_colors(config, 1, true));
  }
  {
    Environment dumb("TERM", "dumb");
    CHECK_FALSE(prints_colors(config, 1, true));
  }
  config.disable_color_printing = true;
  CHECK_FALSE(prints_colors(config, 1, true));
}
