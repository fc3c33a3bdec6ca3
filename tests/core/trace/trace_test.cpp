#include "core/cost.h"
#include "core/io/gzip.h"
#include "core/io/json.h"
#include "core/trace/chrome_trace.h"
#include "core/trace/host_spans.h"
#include "core/trace/step_profile.h"
#include "core/trace/time_split.h"
#include "tests/support/catch.h"

using namespace ottava;
using Catch::Contains;
using Kind = StepProfile::Kind;

namespace {

// Long enough for clocks to differ.
void spend() {
  const int64_t begin = steady_nanoseconds();
  while (steady_nanoseconds() - begin < 200'000) {
  }
}

}  // namespace

TEST_CASE("a profile's spans nest in time and by their parents") {
  Stream stream = Stream::cpu();
  StepProfile profile(stream);
  const int64_t before = steady_nanoseconds();
  {
    const StepProfile::Scope pass(&profile, "layers.0 forward", Kind::pass);
    const StepProfile::Scope outer(&profile, "attention.wo");
    spend();
    {
      const StepProfile::Scope wait(&profile, "7", Kind::wait);
      spend();
    }
    const StepProfile::Scope inner(&profile, "attention.wo.quantize");
    spend();
  }
  const std::map<std::string, double, std::less<>> seconds = profile.seconds();
  const std::vector<StepProfile::Span> spans = profile.take_spans(DeviceClock(stream));
  REQUIRE(spans.size() == 4);
  const std::vector<int> parents{-1, 0, 1, 1};
  for (size_t i = 0; i < 4; ++i) {
    CHECK(spans[i].parent == parents[i]);
    CHECK(spans[i].begin_ns >= before - 1000);
    CHECK(spans[i].end_ns - spans[i].begin_ns >= 199'000);
    if (parents[i] < 0) continue;
    const StepProfile::Span& around = spans[static_cast<size_t>(parents[i])];
    CHECK(spans[i].begin_ns >= around.begin_ns);
    CHECK(spans[i].end_ns <= around.end_ns);
  }
  CHECK(spans[2].kind == Kind::wait);
  // The operation waited: that is its time, as it was before waits were told apart. The pass is no operation.
  REQUIRE(seconds.size() == 2);
  CHECK(seconds.at("attention.wo") >= 399e-6);
  CHECK(seconds.at("attention.wo.quantize") >= 199e-6);
  CHECK(seconds.at("attention.wo") + seconds.at("attention.wo.quantize") ==
        Approx(1e-9 * static_cast<double>(spans[1].end_ns - spans[1].begin_ns)).margin(1e-7));
  CHECK(profile.take_spans(DeviceClock(stream)).empty());
}

TEST_CASE("on meta spans hold what is recorded inside them") {
  CostRecorder recorder;
  Stream stream = Stream::meta(recorder, Device{});
  StepProfile profile(stream);
  recorder.record({.op = "matmul", .flops = 1000, .bytes = 1});
  {
    const StepProfile::Scope outer(&profile, "outer");
    recorder.record({.op = "matmul", .precision = Precision::bf16, .flops = 10, .bytes = 4});
    const StepProfile::Scope inner(&profile, "inner");
    recorder.record({.op = "matmul", .precision = Precision::fp8, .flops = 5, .bytes = 2});
  }
  const std::vector<StepProfile::Span> spans = profile.take_spans(DeviceClock(stream));
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].flops == 15);
  CHECK(spans[0].bytes == 6);
  CHECK(spans[1].flops == 5);
  CHECK(spans[1].bytes == 2);
}

TEST_CASE("time is split so that its parts add up") {
  // compute 0-10 and 20-30 (twice), communication 5-25, and 40-50 after a gap
  const std::vector<Interval> compute{{20, 30}, {0, 10}, {22, 28}}, communication{{5, 25}, {40, 50}};
  const TimeSplit s = split_time(compute, communication);
  CHECK(s.total == 50);
  CHECK(s.compute == 20);
  CHECK(s.communication == 30);
  CHECK(s.overlapped == 10);
  CHECK(s.exposed == 20);
  CHECK(s.idle == 10);
  CHECK(s.compute + s.exposed + s.idle == s.total);
  CHECK(split_time({}, {}).total == 0);
}

TEST_CASE("host spans: what has not ended ends now, and is not forgotten") {
  HostSpans spans;
  { const HostSpans::Scope nothing(nullptr, HostSpans::Track::host, "off"); }
  const HostSpans::Scope save(&spans, HostSpans::Track::saves, "save");
  { const HostSpans::Scope read(&spans, HostSpans::Track::data, "read"); }
  std::vector<HostSpans::Span> all = spans.since(0);
  REQUIRE(all.size() == 2);
  CHECK(all[0].end_ns >= all[1].end_ns);
  spans.forget_ended();
  all = spans.since(0);
  REQUIRE(all.size() == 1);
  CHECK(all[0].name == "save");
  CHECK(all[0].track == HostSpans::Track::saves);
}

TEST_CASE("a trace is JSON of slices, arrows and names on one clock") {
  ChromeTrace trace({.rank = 3, .world_size = 4, .name = "rank 3, \"node\"", .backend = "tcp"}, 1'000'000);
  trace.track(2, "compute");
  trace.slice({2, "wqkv", "kernel", 1'001'500, 1'003'501}, Json::Object{{"stream", 2}});
  trace.slice({2, "early", "kernel", 999'999, 1'000'000});
  trace.arrow(5, {2, 1'001'600}, {2, 1'003'000});
  trace.about("ottava", Json::Object{{"schema", 1}});
  const Json json = Json::parse(trace.text(), "trace");
  CHECK(json.at("distributedInfo", "t").at("rank", "t").as_integer("rank") == 3);
  CHECK(json.at("distributedInfo", "t").at("backend", "t").as_string("backend") == "tcp");
  CHECK(json.at("ottava", "t").at("schema", "t").as_integer("schema") == 1);
  const Json::Array& events = json.at("traceEvents", "t").as_array("events");
  REQUIRE(events.size() == 8);
  for (const Json& event : events) CHECK(event.at("pid", "e").as_integer("pid") == 3);
  CHECK(events[0].at("args", "e").at("name", "e").as_string("name") == "rank 3, \"node\"");
  CHECK(events[4].at("ts", "e").as_number("ts") == 1.5);
  CHECK(events[4].at("dur", "e").as_number("dur") == 2.001);
  CHECK(events[5].at("ts", "e").as_number("ts") == -0.001);
  CHECK(events[6].at("ph", "e").as_string("ph") == "s");
  CHECK(events[7].at("ph", "e").as_string("ph") == "f");
  // Of ranks whose files become one, ids differ.
  CHECK(events[6].at("id", "e").as_integer("id") == 5 * 4 + 3);
  CHECK(events[7].at("id", "e").as_integer("id") == 5 * 4 + 3);
}

TEST_CASE("traces that another program has written anew are not merged") {
  const std::string text = ChromeTrace({.rank = 0, .name = "rank 0"}, 0).text();
  CHECK_NOTHROW(Json::parse(merged_traces({{"a", text}, {"b", text}}), "merged"));
  const std::string anew = Json::parse(text, "trace").dump();
  for (const std::string& other : {anew, std::string("{}")})
    CHECK_THROWS_WITH(merged_traces({{"a", text}, {"b.json.gz", other}}),
                      Contains("[trace] b.json.gz is not laid out as ottava writes it"));
}

TEST_CASE("gzip and back, and what is none") {
  std::string text(3'000'000, 'a');
  for (size_t i = 0; i < text.size(); i += 7) text[i] = static_cast<char>('a' + i % 23);
  for (const std::string& t : {text, std::string()}) CHECK(gunzip(gzip(t, "x"), "x") == t);
  CHECK(gzip(text, "x").size() < text.size() / 4);
  CHECK_THROWS_WITH(gunzip("no gzip", "a.gz"), Contains("a.gz") && Contains("not a complete gzip file"));
  const std::string packed = gzip(text, "x");
  CHECK_THROWS_WITH(gunzip(packed.substr(0, packed.size() / 2), "a.gz"),
                    Contains("not a complete gzip file"));
  CHECK_THROWS_WITH(gunzip(packed, "a.gz", 1000), Contains("more than 1000 bytes"));
}
