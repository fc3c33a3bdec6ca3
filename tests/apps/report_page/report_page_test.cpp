#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "apps/commands/report_command.h"
#include "apps/report_page/decimate.h"
#include "apps/report_page/page.h"
#include "apps/report_page/page_assets.h"
#include "apps/report_page/run_history.h"
#include "core/io/file.h"
#include "core/io/gzip.h"
#include "core/io/json.h"
#include "tests/apps/report_page/made_run.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("a page holds everything itself and its numbers are the file's") {
  TemporaryFolder folder;
  MadeRun run(folder / "a <run> & more");
  run.steps(50).events(MadeRun::start() + MadeRun::event("finished", 50));
  const std::string page = page_of({read_run(run.folder())});
  CHECK_THAT(page, Contains("default-src 'none'"));
  // dygraphs can load files; the policy allows none.
  std::string own = page;
  own.erase(own.find(kDygraphsScript), kDygraphsScript.size());
  for (const char* outside : {"src=\"", "href=\"", "url(", "@import", "fetch(", "XMLHttpRequest"})
    CHECK(own.find(outside) == std::string::npos);
  CHECK_THAT(page, Contains("a &lt;run&gt; &amp; more") && !Contains("<h1>a <run>"));
  CHECK_THAT(page, Contains("MIT-licenced") && Contains("Dygraph"));
  CHECK_THAT(page, Contains("<div><dt>tokens/s per device</dt><dd>1,000</dd></div>"));
  const Json json = island(page);
  const Json::Array& loss = series(json, 0, "loss", "last").as_array("loss");
  REQUIRE(loss.size() == 50);
  for (int s = 1; s <= 50; ++s)
    CHECK(loss[static_cast<size_t>(s) - 1].as_number("loss") == Approx(2 + 6.0 / s).epsilon(1e-5));
  CHECK(json.at("runs", "p").as_array("r")[0].at("series", "r").at("loss", "s").find("min") == nullptr);
  const Json& x = json.at("runs", "p").as_array("r")[0].at("x", "r");
  CHECK(x.at("tokens", "x").as_array("t")[49].as_integer("t") == 50 * 512);
  CHECK(x.at("hours", "x").as_array("h")[49].as_number("h") == Approx(25.0 / 3600).epsilon(1e-5));
  CHECK(json.at("runs", "p").as_array("r")[0].at("planned", "r").at("memory", "p").as_number("m") == 1.0);
  CHECK(json.at("runs", "p").as_array("r")[0].at("config", "r").at("optimizer.lr", "c").as_string("lr") ==
        "0.001");
  std::vector<std::string> titles;
  for (const Json& chart : json.at("charts", "p").as_array("c"))
    titles.push_back(chart.at("title", "c").as_string("t"));
  CHECK(titles == std::vector<std::string>{"Loss", "Gradient norm", "Learning rate", "Tokens/s",
                                           "Utilization", "MFU", "Step time", "Memory", "Waiting for data",
                                           "Loss scale"});
  CHECK(json.at("charts", "p").as_array("c")[0].at("hint", "c").as_string("h") == "mean over tokens");
}

TEST_CASE("a validation between two logged steps is where its step is, in tokens and in hours") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  const std::string validation = R"j("time":1790000012.0,"validation_metrics/loss":7.5})j";
  run.metrics(MadeRun::line(1, 8) + "\n" + R"j({"step":9,)j" + validation + "\n" + MadeRun::line(10, 7) +
              "\n" + R"j({"step":10,)j" + validation + "\n" + R"j({"step":12,)j" + validation + "\n");
  const Json json = island(page_of({read_run(run.folder())}));
  const Json& x = json.at("runs", "p").as_array("r")[0].at("x", "r");
  const auto numbers = [&](const char* axis) {
    std::vector<double> out;
    for (const Json& number : x.at(axis, "x").as_array(axis)) out.push_back(number.as_number(axis));
    return out;
  };
  CHECK(numbers("steps") == std::vector<double>{1, 9, 10, 12});
  CHECK(numbers("tokens") == std::vector<double>{512, 9 * 512, 5120, 5120});
  // Each of the ten steps took half a second, though the line of step 10 comes behind that of step 9.
  const std::vector<double> hours = numbers("hours"), want{0.5 / 3600, 4.5 / 3600, 5.0 / 3600, 5.0 / 3600};
  REQUIRE(hours.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) CHECK(hours[i] == Approx(want[i]).epsilon(1e-5));
  CHECK(json.at("charts", "p").as_array("c")[0].at("hint", "c").as_string("h") ==
        "mean over tokens; dots: validation text");
  CHECK(series(json, 0, "validation", "last").as_array("v")[1].as_number("v") == 7.5);
}

TEST_CASE("sources, validation texts and tasks are curves of one chart each, and stages are told") {
  TemporaryFolder folder;
  MadeRun run(folder / "run"), other(folder / "other");
  std::string text;
  for (int s = 1; s <= 4; ++s)
    text +=
        MadeRun::line(s, 3, fmt::format(R"j(,"mixture/books/loss":{}.5,"mixture/books/share":0.5)j", s)) +
        "\n" +
        fmt::format(
            R"j({{"step":{},"time":1,"validation_metrics/wiki/loss":2.5,"evaluation_metrics/arc/acc":0.25,)j"
            R"j("evaluation_metrics/arc/acc_stderr":0.1,"evaluation_metrics/arc/acc_norm":0.5}})j",
            s) +
        "\n";
  std::string start = MadeRun::start();
  start.replace(start.find("pp 1"), 4, "pp 2");
  start.insert(start.rfind('}'),
               R"j(,"pipeline":{"schedule":"1F1B, 2 ranks","ranks":["embedding, layers 0 to 3","head"]})j");
  run.metrics(text).events(start);
  other.steps(4).events(MadeRun::start());
  const Json page = island(page_of({read_run(run.folder()), read_run(other.folder())}));
  std::vector<std::string> titles;
  for (const Json& group : page.at("groups", "p").as_array("g")) {
    titles.push_back(group.at("title", "g").as_string("t"));
    const Json::Array& keys = group.at("keys", "g").as_array("k");
    REQUIRE(keys.size() == 1);
    const std::string& column = keys[0].as_array("k")[0].as_string("c");
    CHECK_FALSE(series(page, 0, column.c_str(), "last").as_array("l").empty());
    CHECK(page.at("runs", "p").as_array("r")[1].at("series", "r").find(column) == nullptr);
  }
  CHECK(titles == std::vector<std::string>{"Loss of sources", "Loss of validation texts",
                                           "Questions answered", "Questions answered, by length"});
  CHECK(series(page, 0, "mixture/books/loss", "last").as_array("l")[2].as_number("l") == 3.5);
  const Json& first = page.at("runs", "p").as_array("r")[0];
  CHECK(first.at("pipeline", "r").at("ranks", "p").as_array("r")[1].as_string("r") == "head");
  CHECK(first.at("series", "r").find("evaluation_metrics/arc/acc_stderr") == nullptr);
  CHECK(read_run(run.folder()).ranks == "2 ranks (pp 2 x dp_shard 2) on cpu");
  CHECK(island(page_of({read_run(other.folder())})).at("groups", "p").as_array("g").empty());
}

TEST_CASE("decimation keeps every extreme") {
  Column column(10'007, 1);
  column[4321] = 99;
  column[17] = -5;
  for (size_t i = 9000; i < 9100; ++i) column[i] = kNaN;
  const auto buckets = buckets_of(column.size(), 1000);
  REQUIRE(buckets.size() == 1000);
  CHECK(buckets.front().first == 0);
  CHECK(buckets.back().second == column.size());
  for (size_t b = 1; b < buckets.size(); ++b) CHECK(buckets[b].first == buckets[b - 1].second);
  const Points points = decimate(column, buckets);
  CHECK(*std::max_element(points.most.begin(), points.most.end(), [](double a, double b) { return a < b; }) ==
        99);
  double least = 1;
  for (const double v : points.least) least = std::fmin(least, v);
  CHECK(least == -5);
  CHECK(std::isnan(points.last[905]));
  CHECK(decimate({3, kNaN, 4}, buckets_of(3, 10)).least.empty());
  // A gap is where no number is finite.
  CHECK(points.gaps.empty());
  CHECK(decimate({1, HUGE_VAL, HUGE_VAL, HUGE_VAL, kNaN, kNaN}, buckets_of(6, 3)).gaps ==
        std::vector<bool>{false, true, false});
}

TEST_CASE("of very many events, the beginning and the end are listed") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  const auto events = [&](const std::string& text) {
    const Json page = island(page_of({read_run(run.steps(3000).events(text).folder())}));
    std::vector<std::string> out;
    for (const Json& event : page.at("runs", "p").as_array("r")[0].at("events", "r").as_array("e"))
      out.push_back(
          fmt::format("{} {}", event.at("step", "e").as_integer("s"), event.at("text", "e").as_string("t")));
    return out;
  };
  std::string saves = MadeRun::start(), alerts = MadeRun::start();
  for (int s = 1; s < 3000; ++s) saves += MadeRun::event("saved", s);
  for (int s = 1; s < 3000; ++s) alerts += MadeRun::event("alert", s, "of a layer");
  const std::string failed = MadeRun::event("failed", 3000, "gone");
  CHECK(events(saves + failed) ==
        std::vector<std::string>{"0 start", "3000 failed: gone", "3000 2999 saves are not listed"});
  const std::vector<std::string> many = events(alerts + failed);
  REQUIRE(many.size() == 500);
  CHECK(many[249] == "249 alert: of a layer");
  CHECK(many[250] == "250 and 2,502 more");
  CHECK(many[251] == "2752 alert: of a layer");
  CHECK(many.back() == "3000 failed: gone");
}

TEST_CASE("FP8 operands become a map with the worst of each bucket") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  std::string text;
  for (int s = 1; s <= 900; ++s) {
    std::string more;
    for (const char* layer : {"layers.10.wo", "layers.2.wo"}) {
      for (const char* role : {"dy", "x"}) {
        more += fmt::format(
            R"(,"fp8/{0}/{1}/underflow":{2},"fp8/{0}/{1}/saturation":0.0,"fp8/{0}/{1}/scale":{3})", layer,
            role, s == 450 && std::string(role) == "dy" ? 0.5 : 0.0, s <= 450 ? 4.0 : 16.0);
      }
    }
    more += R"(,"fp8/worst/x/underflow":0.0)";
    text += MadeRun::line(s, 3, more) + "\n";
  }
  run.metrics(text).events(MadeRun::start(1,
                                          "quantize: {linear: {float8: {alert_underflow: 0.05, "
                                          "alert_gradient_underflow: 0.25}}}"));
  const Json page = island(page_of({read_run(run.folder())}));
  const Json& map = page.at("runs", "p").as_array("r")[0].at("fp8", "r");
  const Json::Array& rows = map.at("rows", "m").as_array("rows");
  REQUIRE(rows.size() == 4);
  auto row = [&](size_t i) {
    return rows[i].as_array("row")[0].as_string("l") + " " + rows[i].as_array("row")[1].as_string("r");
  };
  CHECK(row(0) == "layers.2.wo x");
  CHECK(row(1) == "layers.10.wo x");
  CHECK(row(2) == "layers.2.wo dy");
  CHECK(map.at("steps", "m").as_array("s").size() == 400);
  CHECK(map.at("alert", "m").at("underflow", "a").as_number("u") == 0.05);
  CHECK(map.at("alert", "m").at("gradient_underflow", "a").as_number("g") == 0.25);
  // 4 rows of 400 bytes in base64; one cell of each dy row is not 0, and the last group is padded.
  const std::string& cells = map.at("underflow", "m").as_string("u");
  CHECK(cells.size() == (1600 + 2) / 3 * 4);
  size_t blank = 0;
  for (size_t i = 0; i < cells.size(); i += 4) blank += cells.substr(i, 4) == "AAAA";
  CHECK(blank == cells.size() / 4 - 3);
}

TEST_CASE("what cannot be read is said, and the rest is shown") {
  TemporaryFolder folder;
  MadeRun good(folder / "good"), other(folder / "other"), empty(folder / "empty"), bare(folder / "bare");
  good.steps(5).events(MadeRun::start(2) + MadeRun::event("finished", 5));
  other.steps(5, 3);
  empty.metrics("");
  std::ostringstream out;
  const std::string page = folder / "page.html";
  run_report_command(
      {.runs = {good.folder(), bare.folder(), other.folder()}, .output = page, .baseline = other.folder()},
      out);
  CHECK_THAT(out.str(), Contains("left out: [report]") && Contains("bare has no metrics.jsonl") &&
                            Contains("events.jsonl has schema 2, but this program reads 1"));
  const std::string text = read_file(page);
  CHECK_THAT(text, Contains("bare has no metrics.jsonl") && Contains("good against other"));
  CHECK(island(text).at("runs", "p").as_array("runs").size() == 2);

  fs::create_symlink("page.html", folder / "link.html");
  run_report_command({.runs = {good.folder()}, .output = folder / "link.html"}, out);
  CHECK(fs::is_symlink(folder / "link.html"));
  CHECK(island(read_file(page)).at("runs", "p").as_array("runs").size() == 1);

  auto report = [&](std::vector<std::string> runs, const std::string& baseline = "",
                    const std::string& x = "steps") {
    run_report_command({.runs = std::move(runs), .output = page, .baseline = baseline, .x = x}, out);
  };
  CHECK_THROWS_WITH(report({bare.folder()}), Contains("has no metrics.jsonl: give the job.dump_folder"));
  CHECK_THROWS_WITH(report({folder / "nowhere"}), Contains("is not the folder of a run"));
  CHECK_THROWS_WITH(report({empty.folder()}), Contains("has no complete line"));
  CHECK_THROWS_WITH(report({empty.folder(), bare.folder()}), Contains("no run can be read"));
  CHECK_THROWS_WITH(report({good.folder(), bare.folder(), other.folder()}, bare.folder()),
                    Contains("bare has no metrics.jsonl"));
  CHECK_THROWS_WITH(report({good.folder()}, "elsewhere"),
                    Contains("--baseline elsewhere is none of the given runs"));
  CHECK_THROWS_WITH(run_report_command({.runs = {good.folder()}, .output = "/nowhere/page.html"}, out),
                    Contains("[file] cannot write /nowhere/page.html: No such file"));
  CHECK_THROWS_WITH(report({good.folder()}, "", "days"),
                    Contains("--x is 'days', expected steps, tokens or hours"));

  // What is there and cannot be read is not taken for what was never written.
  MadeRun closed(folder / "closed");
  closed.steps(5);
  fs::create_symlink("events.jsonl", closed.folder() + "/events.jsonl");
  CHECK_THAT(read_run(closed.folder()).notes.at(0),
             Contains("events are left out: ") && Contains("events.jsonl"));
  fs::create_symlink("metrics.jsonl", bare.folder() + "/metrics.jsonl");
  CHECK_THROWS_WITH(report({bare.folder()}), !Contains("has no"));
  fs::create_directory(good.folder() + "/profile_traces");
  fs::create_symlink("iteration_7", good.folder() + "/profile_traces/iteration_7");
  fs::create_symlink("loop", folder / "loop");
  std::ostringstream left_out;
  run_report_command({.runs = {good.folder(), folder / "loop"}, .output = page}, left_out);
  CHECK_THAT(left_out.str(), Contains("left out: ") && Contains("loop") &&
                                 Contains("good: the trace is left out: ") && Contains("iteration_7"));
  fs::remove(good.folder() + "/profile_traces/iteration_7");
  fs::remove(closed.folder() + "/metrics.jsonl");
  fs::create_directory(closed.folder() + "/metrics.jsonl");
  CHECK_THROWS_WITH(report({closed.folder()}), Contains("metrics.jsonl cannot be read past line 0: "));

  MadeRun odd(folder / "odd");
  odd.steps(5).events(MadeRun::start(1, "model: {a") + MadeRun::event("finished", 5));
  const std::string trace = odd.folder() + "/profile_traces/iteration_3";
  fs::create_directories(trace);
  std::ofstream(trace + "/rank0_trace.json.gz", std::ios::binary)
      << gzip(R"j({"ottava": {"schema": 1, "steps": []}, "traceEvents": []})j", "x");
  std::ostringstream said;
  run_report_command({.runs = {good.folder(), odd.folder()}, .output = page}, said);
  CHECK_THAT(said.str(), Contains("odd: 1 unreadable line of events.jsonl left out, the first is line 1") &&
                             Contains("odd: the trace is left out: [trace]") && Contains("names no steps") &&
                             Contains("2 runs"));
}

TEST_CASE("a run given twice is shown once, and ranks of a run by their files") {
  TemporaryFolder folder;
  MadeRun run(folder / "mine"), other(folder / "other");
  run.steps(3), other.steps(3);
  fs::create_directories(folder / "elsewhere");
  fs::copy(other.folder(), folder / "elsewhere/mine", fs::copy_options::recursive);
  fs::create_directory_symlink(run.folder(), folder / "link");
  for (int rank : {1, 2})
    fs::copy_file(run.folder() + "/metrics.jsonl", run.folder() + fmt::format("/metrics.rank{}.jsonl", rank));
  const auto names = [&](const std::vector<std::string>& runs, const std::string& baseline = "") {
    std::ostringstream out;
    run_report_command({.runs = runs, .output = folder / "page.html", .baseline = baseline}, out);
    const std::string page = read_file(folder / "page.html");
    std::vector<std::string> all;
    const Json json = island(page);
    for (const Json& shown : json.at("runs", "p").as_array("r"))
      all.push_back(shown.at("name", "r").as_string("n"));
    if (!baseline.empty()) CHECK_THAT(page, Contains("other against mine"));
    return all;
  };
  using Names = std::vector<std::string>;
  const std::string mine = run.folder(), file = mine + "/metrics.jsonl";
  CHECK(names({mine, mine}) == Names{"mine"});
  CHECK(names({mine + "/", file, folder / "link", other.folder(), folder / "other/../mine"}) ==
        Names{"mine", "other"});
  CHECK(names({other.folder(), mine, file}, file) == Names{"other", "mine"});
  CHECK(names({mine, other.folder(), mine + "/metrics.rank1.jsonl", mine + "/metrics.rank2.jsonl"}) ==
        Names{file, "other", mine + "/metrics.rank1.jsonl", mine + "/metrics.rank2.jsonl"});
  CHECK(names({mine, folder / "elsewhere/mine"}) == Names{mine, folder / "elsewhere/mine"});
}

TEST_CASE("a run of a single step is a page") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  run.steps(1).events(MadeRun::start());
  const std::string page = page_of({read_run(run.folder())});
  CHECK_THAT(page, Contains("Step 1 of 50 after 1 s of steps; loss from 8.000 to 8.000"));
  const Json json = island(page);
  CHECK(series(json, 0, "loss", "last").as_array("l").size() == 1);
  CHECK(
      json.at("runs", "p").as_array("r")[0].at("x", "r").at("steps", "x").as_array("s")[0].as_integer("s") ==
      1);
}

TEST_CASE("many long runs stay a page that opens") {
  TemporaryFolder folder;
  std::vector<std::string> runs;
  for (int i = 0; i < 20; ++i) {
    MadeRun run(folder / ("run" + std::to_string(i)));
    runs.push_back(run.steps(3000, 2 + 0.1 * i).folder());
  }
  std::ostringstream out;
  const std::string page = folder / "page.html";
  run_report_command({.runs = runs, .output = page}, out);
  CHECK(fs::file_size(page) < 5'000'000);
  const Json json = island(read_file(page));
  CHECK(json.at("runs", "p").as_array("r").size() == 20);
  const Json::Array& most = series(json, 19, "loss", "max").as_array("max");
  CHECK(most.front().as_number("m") == Approx(2 + 1.9 + 6));
}

TEST_CASE("a run of 100,000 steps is a page of less than 5 MB that keeps its spike") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  std::string text;
  for (int s = 1; s <= 100'000; ++s) text += MadeRun::line(s, s == 77'777 ? 99 : 2 + 6.0 / s) + "\n";
  run.metrics(text);
  std::ostringstream out;
  const std::string page = folder / "page.html";
  run_report_command({.runs = {run.folder()}, .output = page}, out);
  CHECK(fs::file_size(page) < 5'000'000);
  const Json json = island(read_file(page));
  const Json::Array& most = series(json, 0, "loss", "max").as_array("max");
  CHECK(most.size() == 1000);
  CHECK(std::ranges::any_of(most, [](const Json& m) { return m.as_number("m") == 99; }));
}
