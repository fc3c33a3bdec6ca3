#include "apps/report/metrics_reporter.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>

#include "core/io/file.h"
#include "core/log.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Contains;
using Catch::StartsWith;
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

/// Value of a scalar in an event file: tag, then the field simple_value (core/io/tensorboard.h). NaN: not
/// there.
float scalar_in(const std::string& events, const std::string& tag) {
  const size_t at = events.find(static_cast<char>(tag.size()) + tag + '\x15');
  float value = std::numeric_limits<float>::quiet_NaN();
  if (at != std::string::npos) std::memcpy(&value, events.data() + at + tag.size() + 2, sizeof value);
  return value;
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

/// What a terminal of so many columns (0: it does not say) gets of the 10th and the 20th of 1000 steps of
/// 100 s, which pass in a quarter of a second.
std::string progress_on_terminal(int columns, const std::string& planned) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const int ours = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY), before = ::dup(STDERR_FILENO);
  REQUIRE(ours >= 0);
  const winsize size{
      .ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(::ioctl(ours, TIOCSWINSZ, &size) == 0);
  const Environment kind("TERM", "xterm");
  TemporaryFolder folder;
  ::dup2(ours, STDERR_FILENO);
  {
    MetricsReporter reporter({.folder = folder.path(), .total_steps = 1000});
    reporter.progress(10, 100, planned);  // nothing else is known yet
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    reporter.progress(20, 100, planned);
  }
  ::dup2(before, STDERR_FILENO);
  // The destructor clears the line, for the third time.
  std::string lines;
  const auto is_cleared = [&] {
    return lines.ends_with("\r\033[K") && lines.find("step 20 of") != std::string::npos;
  };
  for (pollfd waits{.fd = terminal, .events = POLLIN}; !is_cleared() && ::poll(&waits, 1, 10'000) > 0;) {
    char text[256];
    const ssize_t length = ::read(terminal, text, sizeof text);
    if (length <= 0) break;
    lines.append(text, length);
  }
  for (const int file : {terminal, ours, before}) ::close(file);
  return lines;
}

}  // namespace

TEST_CASE("the time that is left follows from all that has passed, not from the last step") {
  const std::string lines = progress_on_terminal(0, "");
  CHECK_THAT(lines, Contains("step 10 of 1000 [                              ] 100.00 s/step, 27h 30m left"));
  // Ten steps took a quarter of a second, so that minutes and seconds are left, not hours.
  const size_t second = lines.find("step 20 of 1000 ");
  REQUIRE(second != std::string::npos);
  CHECK_THAT(lines.substr(second), Contains("100.00 s/step, ") && Contains("s left"));
}

TEST_CASE("progress fits into one line of the terminal") {
  const auto first_on = [](int columns) {
    const std::string lines = progress_on_terminal(columns, "planned 0.00302 s");
    const size_t begin = lines.find("step 10 of");
    REQUIRE(begin != std::string::npos);
    return lines.substr(begin, lines.find('\r', begin) - begin);
  };
  const std::string whole =
      "step 10 of 1000 [                              ] 100.00 s/step (planned 0.00302 s), 27h 30m left";
  for (const int columns : {0, 97, 200}) CHECK(first_on(columns) == whole);
  for (const int columns : {96, 80})
    CHECK(first_on(columns) == "step 10 of 1000 [          ] 100.00 s/step, 27h 30m left");
  CHECK(first_on(40) == "step 10 of 1000, 27h 30m left");
  CHECK(first_on(20) == "step 10 of 1000, 27");
}

TEST_CASE("only rank 0 writes metrics, unless save_for_all_ranks asks for files of every rank") {
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

TEST_CASE("the validation of a model that gives no numbers shows nan, without a sign") {
  const CapturedOutput captured;
  log::set_level(log::Level::info);
  MetricsReporter reporter({.config = {.enable_json_lines = false}, .total_steps = 2});
  reporter.log_validation(1, {.loss = -std::numeric_limits<double>::quiet_NaN()}, {});
  log::set_level(log::Level::warning);
  CHECK_THAT(captured.text(), Contains("perplexity: nan") && !Contains("-nan"));
}

TEST_CASE("files that have no room are told of once, and have what is written after there is room") {
  log::set_level(log::Level::warning);
  TemporaryFolder folder;
  MetricsConfig config;
  config.enable_tensorboard = true;
  MetricsReporter reporter({.config = config, .folder = folder.path(), .total_steps = 9});
  const CapturedOutput captured;
  StepMetrics m;
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit little{400, before.rlim_max};
  for (const bool is_full : {true, true, false}) {
    ++m.step;
    if (is_full) ::setrlimit(RLIMIT_FSIZE, &little);
    CHECK_NOTHROW(reporter.log_step(m));
    CHECK_NOTHROW(reporter.log_samples(m.step, {"an"}, {std::string(600, 'o')}));
    ::setrlimit(RLIMIT_FSIZE, &before);
  }
  const std::string said = captured.text(), lines = read_file(folder / "metrics.jsonl");
  CHECK_THAT(said, Contains("metrics are missing") && Contains("metrics.jsonl"));
  CHECK(said.find("WARNING") == said.rfind("WARNING"));
  CHECK_THAT(lines, StartsWith("{\"step\":3,"));
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 2);
}

// What a dashboard compares runs by: each figure under its own label, none in another's place.
TEST_CASE("the three utilizations are labelled in JSON lines and in TensorBoard") {
  log::set_level(log::Level::warning);
  TemporaryFolder folder;
  MetricsConfig config;
  config.enable_tensorboard = true;
  MetricsReporter reporter({.config = config, .folder = folder / "run", .total_steps = 1});
  StepMetrics m;
  m.step = 1;
  m.tokens_per_second = 4096;
  m.tflops = 410.5;
  m.mfu_percent = 41.5;
  m.conservative_mfu_percent = 20.75;
  m.utilization_percent = 28.25;
  reporter.log_step(m);
  reporter.flush();
  const std::string lines = read_file(folder / "run/metrics.jsonl");
  const std::string events = read_file(fs::directory_iterator(folder / "run/tb")->path().string());
  for (const auto& [label, value] :
       std::initializer_list<std::pair<std::string, double>>{{"throughput(tps)", 4096},
                                                             {"tflops", 410.5},
                                                             {"mfu(%)", 41.5},
                                                             {"mfu_conservative(%)", 20.75},
                                                             {"utilization(%)", 28.25}}) {
    INFO(label);
    CHECK_THAT(lines, Contains(fmt::format("\"{}\":{}", label, value)));
    CHECK(static_cast<double>(scalar_in(events, label)) == value);
  }
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
