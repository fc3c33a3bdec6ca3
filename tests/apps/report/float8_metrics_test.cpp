#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "apps/report_page/page.h"
#include "apps/report_page/run_history.h"
#include "apps/report_page/verdict.h"
#include "core/io/file.h"
#include "core/text/gib.h"
#include "tests/support/captured_output.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

// What a run in FP8 leaves for people to look at: lines, events, and a warning.

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;

namespace {

TinyTraining::Overrides in_float8(const TinyTraining::Overrides& more) {
  return words(
             "--training.mixed_precision_param bfloat16 --model.converters [quantize.linear.float8] "
             "--training.steps 3 --metrics.enable_tensorboard true") +
         more;
}

std::string events_of(const std::string& run_folder) {
  return read_file(std::filesystem::directory_iterator(run_folder + "/tb")->path().string());
}

/// The columns that the page's script draws.
std::set<std::string> columns_of_charts(const Json& data) {
  std::set<std::string> out;
  for (const Json& chart : data.at("charts", "data").as_array("charts"))
    for (const char* name : {"key", "also"})
      if (const Json* column = chart.find(name)) out.insert(column->as_string(name));
  return out;
}

}  // namespace

TEST_CASE("amaxes, scales and fractions of every layer and role are in each line and in TensorBoard") {
  const TinyTraining tiny;
  tiny.start("run", in_float8({}))->run();
  const std::vector<Json> lines = logged_lines(tiny / "run");
  const std::string events = events_of(tiny / "run");
  REQUIRE(lines.size() == 3);
  for (const char* layer : {"attention.wqkv", "attention.wo", "feed_forward.w13", "feed_forward.w2"}) {
    for (int block : {0, 1}) {
      for (const char* role : {"x", "w", "dy"}) {
        const std::string name = fmt::format("fp8/layers.{}.{}/{}", block, layer, role);
        INFO(name);
        for (const char* figure : {"/amax", "/scale", "/underflow", "/saturation"}) {
          REQUIRE(logged(tiny / "run", name + figure).size() == 3);
          CHECK_THAT(events, Contains(name + figure));
        }
        const double max = std::string_view(role) == "dy" ? 57344 : 448;
        for (const Json& line : lines) {
          const double amax = line.at(name + "/amax", "").as_number(""),
                       scale = line.at(name + "/scale", "").as_number("");
          CHECK(amax > 0);
          CHECK(scale == Approx(max / amax).epsilon(1e-6));
        }
      }
    }
  }
  for (const char* worst : {"fp8/worst/x/underflow", "fp8/worst/w/saturation", "fp8/worst/dy/underflow"}) {
    CHECK(logged(tiny / "run", worst).size() == 3);
    CHECK_THAT(events, Contains(worst));
  }
}

TEST_CASE("a layer above the threshold is a warning in the log, once, and none where it is below") {
  const TinyTraining tiny;
  auto warnings = [&](const std::string& run, const char* threshold) {
    const CapturedOutput log;
    TinyTraining::Run r = tiny.start(run, in_float8({"--quantize.linear.float8.alert_underflow", threshold}));
    // One weight that is so large that the others of its matrix, 0.02 each, become zero.
    Fsdp& parameters = r->engine().parameters();
    parameters.shard(parameters.float8()->specs()[0].parameter).master.as<float>()[5] = 1e4f;
    parameters.refresh_compute_copies();
    r->run();
    CHECK(logged(tiny / run, "fp8/layers.0.attention.wqkv/w/underflow")[0] > 0.1);
    const std::string text = log.text(), warning = "FP8 underflow of w above 0%: layers.0.attention.wqkv ";
    const size_t at = text.find(warning);
    if (at == std::string::npos) return 0;
    CHECK_THAT(text.substr(0, at), Contains("WARNING"));
    return text.find(warning, at + 1) == std::string::npos ? 1 : 2;
  };
  CHECK(warnings("zero", "0") == 1);
  CHECK(warnings("never", "1") == 0);
}

TEST_CASE("without statistics nothing of FP8 is logged") {
  const TinyTraining tiny;
  tiny.start("run", in_float8({"--quantize.linear.float8.enable_statistics", "false"}))->run();
  CHECK_THAT(read_file(tiny / "run/metrics.jsonl"), Contains("grad_norm") && !Contains("fp8/"));
  CHECK_THAT(events_of(tiny / "run"), Contains("grad_norm") && !Contains("fp8/"));
}

// report_page_test.cpp writes files of runs itself; here they are a run's.
TEST_CASE("a report of a run has all of its charts, the plan beside them, the map of operands and its end") {
  const TinyTraining tiny;
  TinyTraining::Run r = tiny.start(
      "run", in_float8({"--validation.enable", "true", "--validation.freq", "2", "--validation.steps", "1",
                        "--validation.seq_len", "32", "--validation.local_batch_size", "1",
                        "--validation.dataset_path", tiny.text_path()}));
  r->run();
  const RunHistory run = read_run(tiny / "run");
  CHECK(run.notes.empty());
  CHECK(verdict_of(run, 0).state == "finished");
  const std::string page = report_page({run}, {}, {}), begin = "id=\"data\">";
  const size_t at = page.find(begin);
  REQUIRE(at != std::string::npos);
  const size_t text = at + begin.size();
  const Json data = Json::parse(page.substr(text, page.find("</script>", text) - text), "data");
  const Json& shown = data.at("runs", "data").as_array("runs").at(0);
  const std::set<std::string> charts = columns_of_charts(data);
  CHECK(charts.contains("validation"));
  for (const std::string& chart : charts) {
    INFO(chart);
    CHECK(shown.at("series", "run").find(chart) != nullptr);
  }
  for (const auto& [column, points] : shown.at("series", "run").as_object("series")) {
    INFO(column);
    CHECK((charts.contains(column) || column.find('/') != std::string::npos));  // the latter: of a group
  }
  CHECK(shown.at("x", "run").at("tokens", "x").as_array("tokens").back().as_integer("tokens") == 3 * 2 * 32);
  const Json& planned = shown.at("planned", "run");
  CHECK(planned.at("memory", "planned").as_number("memory") ==
        Approx(gib(r->plan().memory.total_bytes())).epsilon(1e-5));
  CHECK(planned.at("step_seconds", "planned").as_number("seconds") > 0);
  CHECK(shown.at("fp8", "run").at("rows", "fp8").as_array("rows").size() == 2 * 4 * 3);
  CHECK(shown.at("config", "run").at("training.steps", "config").as_string("steps") == "3");
  const Json::Array& events = shown.at("events", "run").as_array("events");
  REQUIRE(events.size() >= 2);
  CHECK(events.front().at("text", "event").as_string("text") == "start");
  CHECK(events.back().at("text", "event").as_string("text") == "finished");
}
