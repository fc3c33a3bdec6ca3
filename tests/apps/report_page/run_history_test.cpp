#include "apps/report_page/run_history.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "apps/report/run_events.h"
#include "apps/report_page/verdict.h"
#include "core/io/file.h"
#include "core/io/gzip.h"
#include "core/io/json.h"
#include "tests/apps/report_page/made_run.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace ottava;
using namespace ottava::test;
using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;
namespace fs = std::filesystem;

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
  // It is no event of a step behind which the start after it went back.
  CHECK_FALSE(read_run(run.events(MadeRun::start()).folder()).events[0].is_left);
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

TEST_CASE("a trace of an earlier run in the folder, or of steps that were left, is not the run's") {
  TemporaryFolder folder;
  MadeRun run(folder / "run");
  const auto trace = [&](int step, int64_t seconds) {
    const std::string at = fmt::format("{}/profile_traces/iteration_{}", run.folder(), step);
    fs::create_directories(at);
    std::ofstream(at + "/rank0_trace.json.gz", std::ios::binary) << gzip(
        fmt::format(
            R"j({{"ottava": {{"schema": 1, "steps": [{}]}}, "baseTimeNanoseconds": {}000000000, "traceEvents": [)j"
            R"j({{"cat": "kernel", "name": "mlp", "args": {{}}, "ts": 1000000.0, "dur": 2000000.0}}]}})j",
            step, seconds),
        "x");
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
