#include "core/trace/chrome_trace.h"

#include <fmt/format.h>

#include <cstdlib>
#include <iterator>
#include <utility>

#include "core/error.h"

namespace ottava {
namespace {

// Microseconds to the nanosecond.
void append_microseconds(std::string& out, int64_t ns) {
  const int64_t size = std::abs(ns);
  fmt::format_to(std::back_inserter(out), "{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

}  // namespace

ChromeTrace::ChromeTrace(Rank rank, int64_t origin_ns) : rank_(std::move(rank)), origin_ns_(origin_ns) {
  metadata("process_name", 0, Json::Object{{"name", rank_.name}});
  metadata("process_sort_index", 0, Json::Object{{"sort_index", rank_.rank}});
}

void ChromeTrace::metadata(std::string_view name, int track, const Json& args) {
  begin('M', name, {track, origin_ns_});
  events_ += ",\"args\":" + args.dump() + "}";
}

void ChromeTrace::begin(char phase, std::string_view name, Point at) {
  if (!events_.empty()) events_ += ",\n";
  fmt::format_to(std::back_inserter(events_), R"({{"ph":"{}","pid":{},"tid":{},"ts":)", phase, rank_.rank,
                 at.track);
  append_microseconds(events_, at.at_ns - origin_ns_);
  events_ += ",\"name\":";
  append_json_string(events_, name);
}

void ChromeTrace::track(int number, std::string_view name) {
  metadata("thread_name", number, Json::Object{{"name", std::string(name)}});
  metadata("thread_sort_index", number, Json::Object{{"sort_index", number}});
}

void ChromeTrace::slice(const Slice& s, const Json& args) {
  begin('X', s.name, {s.track, s.begin_ns});
  events_ += ",\"cat\":";
  append_json_string(events_, s.category);
  events_ += ",\"dur\":";
  append_microseconds(events_, s.end_ns - s.begin_ns);
  if (!args.is_null()) events_ += ",\"args\":" + args.dump();
  events_ += '}';
}

void ChromeTrace::arrow(int64_t id, Point from, Point to) {
  // Ids hold for a whole file, and files of several ranks may become one.
  const int64_t unique = id * rank_.world_size + rank_.rank;
  begin('s', "ac2g", from);
  events_ += fmt::format(R"(,"cat":"ac2g","id":{}}})", unique);
  begin('f', "ac2g", to);
  events_ += fmt::format(R"(,"cat":"ac2g","id":{},"bp":"e"}})", unique);
}

void ChromeTrace::about(std::string name, Json value) { about_.set(std::move(name), std::move(value)); }

std::string ChromeTrace::text() const {
  Json head = about_;
  head.set("schemaVersion", 1)
      .set("displayTimeUnit", "ms")
      .set("distributedInfo",
           Json().set("backend", rank_.backend).set("rank", rank_.rank).set("world_size", rank_.world_size));
  std::string text = head.dump();
  text.pop_back();
  return text + ",\"traceEvents\":[\n" + events_ + "\n]}\n";
}

std::string merged_traces(const std::vector<TraceFile>& files) {
  constexpr std::string_view kBegin = "\"traceEvents\":[\n", kEnd = "\n]}\n";
  std::string all;
  for (const auto& [path, text] : files) {
    const size_t head = text.find(kBegin), begin = head + kBegin.size(), end = text.rfind(kEnd);
    if (head == std::string::npos || end == std::string::npos || end < begin)
      fail<FileError>("trace",
                      "{} is not laid out as ottava writes it, so that it cannot be merged: another program "
                      "has written it anew; give that of the run",
                      path);
    all += all.empty() ? text.substr(0, begin) : ",\n";
    all += text.substr(begin, end - begin);
  }
  return all + std::string(kEnd);
}

}  // namespace ottava
