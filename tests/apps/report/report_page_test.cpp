#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "apps/commands/report_command.h"
#include "apps/report/run_events.h"
#include "apps/report_page/decimate.h"
#include "apps/report_page/page.h"
#include "apps/report_page/page_assets.h"
#include "apps/report_page/run_history.h"
#include "apps/report_page/verdict.h"
#include "core/error.h"
#include "core/io/file.h"
#include "core/io/gzip.h"
#include "core/io/json.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using Catch::Contains, Catch::EndsWith, Catch::StartsWith;
namespace fs = std::filesystem;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A folder as a run leaves it.
class MadeRun {
 public:
  explicit MadeRun(const std::string& folder) : folder_(folder) { fs::create_directories(folder); }

  static std::string line(int64_t step, double loss, const std::string& more = "") {
    return fmt::format(
        R"j({{"step":{},"time":{}.5,"loss_metrics/global_avg_loss":{},"grad_norm":1.25,"throughput(tps)":1000.0,)j"
        R"j("time_metrics/end_to_end(s)":0.5,"memory/max_active(GiB)":2.0,"n_tokens_seen":{}.0{}}})j",
        step, 1'790'000'000 + step, loss, step * 512, more);
  }
  MadeRun& metrics(const std::string& text) {
    std::ofstream(folder_ + "/metrics.jsonl") << text;
    return *this;
  }
  MadeRun& steps(int count, double final_loss = 2) {
    std::string text;
    for (int s = 1; s <= count; ++s) text += line(s, final_loss + 6.0 / s) + "\n";
    return metrics(text);
  }
  MadeRun& events(const std::string& text) {
    std::ofstream(folder_ + "/events.jsonl") << text;
    return *this;
  }
  static std::string start(int schema = 1, const std::string& config = "optimizer: {lr: 0.001}") {
    const std::string plan = R"j({"memory_bytes":1073741824,"memory":{"weights":1073741824}})j";
    return fmt::format(
               R"j({{"time":1790000000.0,"event":"start","step":0,"text":"","schema":{},"steps":50,"device":"cpu",)j"
               R"j("ranks":2,"mesh":"pp 1 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 1 = 2",)j"
               R"j("model":"llama3 debugmodel","parameters":6270208,"plan":{},"config":"{}"}})j",
               schema, plan, config) +
           "\n";
  }
  static std::string event(const std::string& name, int step, const std::string& text = "") {
    return fmt::format(R"j({{"time":1790000100.0,"event":"{}","step":{},"text":"{}"}})j", name, step, text) +
           "\n";
  }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

Json island(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  const std::string text = page.substr(at, page.find("</script>", at) - at);
  CHECK(text.find('<') == std::string::npos);
  return Json::parse(text, "island");
}

const Json& series(const Json& page, size_t run, const char* chart, const char* part) {
  return page.at("runs", "p").as_array("runs").at(run).at("series", "r").at(chart, "s").at(part, chart);
}

std::string page_of(const std::vector<RunHistory>& runs) {
  return report_page(runs, {}, {.now = 1'790'001'000});
}

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
}

TEST_CASE("a torn line, lines that count no longer and numbers that are none are told") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  std::string text;
  for (int s = 1; s <= 6; ++s) text += MadeRun::line(s, 10 - s) + "\n";
  text += "what is this\n";
  text += MadeRun::line(4, 70) + "\n";
  text +=
      R"({"step":5,"time":1790000009.5,"loss_metrics/global_avg_loss":null,"non_finite":{"loss_metrics/global_avg_loss":"inf"}})"
      "\n";
  text += R"({"step":5,"time":1790000010.5,"validation_metrics/loss":3.5})"
          "\n";
  text += MadeRun::line(6, 60) + "\n" + R"({"step":7,"ti)";
  const RunHistory history = read_run(run.metrics(text).folder());
  CHECK(history.steps == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  const Column& loss = *history.column("loss_metrics/global_avg_loss");
  CHECK(loss[3] == 70);
  CHECK(std::isinf(loss[4]));
  CHECK(loss[5] == 60);
  CHECK((*history.column("validation_metrics/loss"))[4] == 3.5);
  REQUIRE(history.notes.size() == 2);
  CHECK_THAT(history.notes[0], Contains("the last line of metrics.jsonl is incomplete"));
  CHECK_THAT(history.notes[1], Contains("1 unreadable line of metrics.jsonl") && Contains("line 7"));
  REQUIRE(history.non_finite.size() == 1);
  CHECK(history.non_finite[0] == std::pair<int64_t, std::string>(5, "loss_metrics/global_avg_loss is inf"));
  REQUIRE(history.events.size() == 1);
  CHECK_THAT(history.events[0].text, Contains("the steps 4 to 6 recorded earlier"));
  const std::string page = page_of({history});
  CHECK_THAT(page, Contains("is incomplete"));
  CHECK(series(island(page), 0, "loss", "last").as_array("l")[4].is_null());
}

TEST_CASE("the verdict says how a run ended") {
  TemporaryFolder folder;
  const std::string start = MadeRun::start();
  auto verdict = [&](const std::string& events, double now = 1'790'100'000) {
    MadeRun run(folder / "run");
    run.steps(50);
    events.empty() ? void(fs::remove(run.folder() + "/events.jsonl")) : void(run.events(events));
    return verdict_of(read_run(run.folder()), now);
  };
  CHECK(verdict("").state == "ended");
  CHECK(verdict(start + MadeRun::event("finished", 50)).state == "finished");
  CHECK(verdict(start + MadeRun::event("stopped", 50)).state == "stopped");
  CHECK(verdict(start).state == "interrupted");
  CHECK(verdict(start, 1'790'000'200).state == "running");
  // The run went back to step 10: what happened later is what counts.
  const std::string again =
      start + MadeRun::event("finished", 40) +
      R"j({"time":1790000101.0,"event":"start","step":10,"text":"goes on after step 10",)j" +
      start.substr(start.find("\"schema\""));
  CHECK(verdict(again).state == "interrupted");
  CHECK(verdict(again, 1'790'000'200).state == "running");
  CHECK(verdict(again + MadeRun::event("failed", 25, "[comm] gone")).state == "failed");
  CHECK(verdict(start + MadeRun::event("failed", 50, "[comm] gone")).facts.back().second == "[comm] gone");
  const Verdict twice = verdict(start + MadeRun::event("stopped", 20) + start + MadeRun::event("alert", 30) +
                                MadeRun::event("finished", 50));
  CHECK(twice.state == "finished");
  CHECK_THAT(twice.headline, Contains("Step 50 of 50") && Contains("loss from 8.000 to 2.120"));
  auto fact = [&](const std::string& name) {
    for (const auto& [n, value] : twice.facts)
      if (n == name) return value;
    return std::string("missing");
  };
  // Failures from which the run went on are events; what the run ended with is the last.
  const Verdict failed =
      verdict(start + MadeRun::event("failed", 10, "a") + start + MadeRun::event("failed", 50, "b"));
  CHECK(failed.facts.back() == std::pair<std::string, std::string>("failed with", "b"));
  CHECK(std::ranges::count(failed.facts, "failed with", &std::pair<std::string, std::string>::first) == 1);
  CHECK(fact("restarts") == "1");
  CHECK(fact("FP8 alerts") == "1");
  CHECK(fact("tokens/s per device") == "1,000");
  CHECK(fact("memory of a rank") == "2.00 GiB");
}

TEST_CASE("losses that are not finite are told and leave gaps") {
  TemporaryFolder folder;
  const auto run = [&](const std::string& name, int first, int last) {
    MadeRun made(folder / name);
    std::string text;
    for (int s = 1; s <= 50; ++s) {
      std::string line = MadeRun::line(s, 10 - 0.125 * s);
      const std::string key = "\"loss_metrics/global_avg_loss\":";
      const size_t at = line.find(key) + key.size();
      if (s >= first && s <= last) line.replace(at, line.find(',', at) - at, "null");
      text += line + "\n";
    }
    return read_run(made.metrics(text).folder());
  };
  const RunHistory whole = run("whole", 51, 51), middle = run("middle", 20, 29), end = run("end", 30, 50),
                   all = run("all", 1, 50);
  const auto headline = [](const RunHistory& of) { return verdict_of(of, 1'790'001'000).headline; };
  CHECK_THAT(headline(whole), EndsWith("loss from 9.875 to 3.750"));
  CHECK_THAT(headline(middle), EndsWith("loss from 9.875 to 3.750, 10 logged losses not finite"));
  CHECK_THAT(headline(end), EndsWith("loss from 9.875 to 6.375 at step 29, not finite since"));
  CHECK_THAT(headline(all), EndsWith("no logged loss is finite"));
  CHECK_THAT(comparison_of(end, whole), Contains("end against whole: the loss is the same") &&
                                            Contains("the loss of end is not finite at 21 common points"));
  CHECK_THAT(comparison_of(whole, all), Contains("all: the loss of all is not finite at 50 common points"));
  CHECK_THAT(comparison_of(middle, middle), !Contains("finite"));

  const Json page = island(page_of({middle, whole}));
  const Json::Array& gaps = series(page, 0, "loss", "gaps").as_array("gaps");
  REQUIRE(gaps.size() == 50);
  for (size_t i = 0; i < gaps.size(); ++i) CHECK(gaps[i].as_bool("gap") == (i >= 19 && i < 29));
  CHECK(page.at("runs", "p").as_array("r")[1].at("series", "r").at("loss", "s").find("gaps") == nullptr);
  // A bucket that has a finite number too shows that.
  CHECK(decimate({1, HUGE_VAL, HUGE_VAL, HUGE_VAL, kNaN, kNaN}, buckets_of(6, 3)).gaps ==
        std::vector<bool>{false, true, false});
}

TEST_CASE("the time of a run has no pauses between starts and needs no clock") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  for (const int64_t pause : {0, 600'000, -90'000'000}) {
    std::string text;
    for (int s = 1; s <= 50; ++s) {
      std::string line = MadeRun::line(s, 3);
      const std::string time = std::to_string(1'790'000'000 + s);
      line.replace(line.find(time), time.size(), std::to_string(1'790'000'000 + s + (s > 25 ? pause : 0)));
      text += line + "\n";
    }
    CHECK_THAT(verdict_of(read_run(run.metrics(text).folder()), 1'800'000'000).headline,
               StartsWith("Step 50 after 25 s of steps; "));
  }
}

TEST_CASE("what happened in steps behind which the run went back is told as such and not counted") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  std::string back = MadeRun::start();
  back.replace(back.find("\"step\":0"), 8, "\"step\":20");
  const std::string alerts = MadeRun::event("alert", 20, "a") + MadeRun::event("alert", 30, "b");
  run.steps(50).events(MadeRun::start() + alerts + MadeRun::event("failed", 31, "gone") + back +
                       MadeRun::event("alert", 30, "b") + MadeRun::event("finished", 50));
  const RunHistory history = read_run(run.folder());
  const Verdict verdict = verdict_of(history, 1'790'001'000);
  CHECK(verdict.facts.back() == std::pair<std::string, std::string>("FP8 alerts", "2"));
  const Json page = island(page_of({history}));
  std::vector<std::string> texts;
  for (const Json& event : page.at("runs", "p").as_array("r")[0].at("events", "r").as_array("e"))
    texts.push_back(event.at("text", "e").as_string("t"));
  const std::string left = " (the run later went back behind this step)";
  CHECK(texts == std::vector<std::string>{"start", "alert: a", "start", "alert: b" + left, "alert: b",
                                          "failed: gone" + left, "finished"});
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

TEST_CASE("a trace of an earlier run in the folder, or of steps that were left, is not the run's") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  const auto trace = [&](int step, int64_t seconds) {
    const std::string at = fmt::format("{}/profile_traces/iteration_{}", run.folder(), step);
    fs::create_directories(at);
    std::ofstream(at + "/rank0_trace.json.gz", std::ios::binary) << gzip(fmt::format(
        R"j({{"ottava": {{"schema": 1, "steps": [{}]}}, "baseTimeNanoseconds": {}000000000, "traceEvents": [)j"
        R"j({{"cat": "kernel", "name": "mlp", "args": {{}}, "ts": 1000000.0, "dur": 2000000.0}}]}})j",
        step, seconds));
  };
  const auto about = [&] {
    const RunHistory history = read_run(run.folder());
    return history.trace ? history.trace->about.substr(0, history.trace->about.find(',')) : "none";
  };
  constexpr int64_t kBegin = 1'790'000'000;
  run.steps(50).events(MadeRun::start());
  trace(500, kBegin - 1000);
  CHECK(about() == "none");
  trace(40, kBegin - 2);  // the timeline begins before the first step
  CHECK(about() == "Rank 0 in step 40");
  std::string back = MadeRun::start();
  back.replace(back.find("1790000000.0"), 12, "1790000100.0");
  back.replace(back.find("\"step\":0"), 8, "\"step\":20");
  trace(20, kBegin);
  run.events(MadeRun::start() + back);
  CHECK(about() == "Rank 0 in step 20");
  trace(40, kBegin + 200);
  CHECK(about() == "Rank 0 in step 40");
}

TEST_CASE("runs are compared over the steps that they share") {
  TemporaryFolder folder;
  MadeRun a(folder / "a"), b(folder / "b"), far(folder / "far");
  a.steps(50, 2);
  std::string text;
  for (int s = 2; s <= 60; s += 2) text += MadeRun::line(s, (2 + 6.0 / s) * (s == 30 ? 1.10 : 1.01)) + "\n";
  b.metrics(text);
  far.metrics(MadeRun::line(1000, 2) + "\n");
  const RunHistory base = read_run(a.folder());
  CHECK_THAT(comparison_of(read_run(b.folder()), base), Contains("b against a: the loss is 1.00% higher") &&
                                                            Contains("step 30, by +10.00%") &&
                                                            Contains("1.00 times its tokens/s"));
  CHECK_THAT(comparison_of(base, base), Contains("the loss is the same"));
  CHECK_THAT(comparison_of(read_run(far.folder()), base), Contains("no logged step in common"));
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
      << gzip(R"j({"ottava": {"schema": 1, "steps": []}, "traceEvents": []})j");
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

TEST_CASE("a run is given by its folder or by its metrics.jsonl, from anywhere") {
  TemporaryFolder folder;
  MadeRun run(folder / "mine");
  run.steps(3);
  CHECK(read_run(run.folder() + "/metrics.jsonl").name == "mine");
  const fs::path before = fs::current_path();
  fs::current_path(run.folder());
  for (const char* given : {"metrics.jsonl", "./metrics.jsonl", "."}) {
    const RunHistory history = read_run(given);
    CHECK(history.name == "mine");
    CHECK(history.steps.size() == 3);
  }
  fs::current_path(before);
  CHECK_THROWS_WITH(read_run(""), Contains("'' is not the folder of a run"));
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

TEST_CASE("events go on in their file, also after a torn line") {
  TemporaryFolder folder;
  const std::string path = folder / "run/events.jsonl";
  RunEvents().add("start", 0, "nothing is written");
  RunEvents(folder / "run", 0).add("start", 0, "first", Json(Json::Object{{"schema", 1}}));
  std::ofstream(path, std::ios::app) << R"({"torn":)";
  RunEvents(folder / "run", 7).add("stopped", 9, "a \"quoted\" <reason>");
  const std::string text = read_file(path);
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  const Json last = Json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1), "line");
  CHECK(last.at("event", "l").as_string("e") == "stopped");
  CHECK(last.at("step", "l").as_integer("s") == 9);
  CHECK(last.at("text", "l").as_string("t") == "a \"quoted\" <reason>");
  RunEvents(folder / "run", 0).add("start", 0, "anew");
  CHECK(fs::exists(path + ".previous"));
  CHECK_THAT(read_file(path), Contains("anew") && !Contains("first"));
}
