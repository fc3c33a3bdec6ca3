#include "core/trace/step_profile.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "core/cost.h"
#include "core/trace/nvtx.h"

namespace ottava {

int64_t steady_nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

DeviceClock::DeviceClock(Stream& stream) : base_(stream.device()) {
  base_.record(stream);
  base_.synchronize();
  nanoseconds_ = steady_nanoseconds();
}

int64_t DeviceClock::nanoseconds_of(const Event& event) const {
  return nanoseconds_ + std::llround(event.milliseconds_since(base_) * 1e6);
}

size_t StepProfile::mark() {
  Mark mark{.at = Event(stream_.device())};
  mark.at.record(stream_);
  if (stream_.type() == DeviceType::meta) {
    const CostRecorder& recorder = stream_.recorder();
    for (Precision p : {Precision::fp32, Precision::bf16, Precision::fp8}) mark.flops += recorder.flops(p);
    mark.bytes = recorder.bytes();
    mark.events = recorder.order().events.size();
  }
  marks_.push_back(std::move(mark));
  return marks_.size() - 1;
}

void StepProfile::enter(std::string_view label, Kind kind) {
  if (ranges_ == Ranges::nvtx) nvtx::push(std::string(label));
  const size_t begin = mark();
  spans_.push_back({std::string(label), kind, open_, begin, begin});
  open_ = static_cast<int>(spans_.size()) - 1;
}

void StepProfile::leave() {
  Opened& span = spans_[open_];
  span.end = mark();
  open_ = span.parent;
  if (ranges_ == Ranges::nvtx) nvtx::pop();
}

std::vector<StepProfile::Span> StepProfile::take_spans(const DeviceClock& clock) {
  stream_.synchronize();
  const bool is_planned = stream_.type() == DeviceType::meta;
  std::vector<Span> out;
  out.reserve(spans_.size());
  for (Opened& span : spans_) {
    const Mark &begin = marks_[span.begin], &end = marks_[span.end];
    Span s{.label = std::move(span.label), .kind = span.kind, .parent = span.parent};
    if (is_planned) {
      s.flops = end.flops - begin.flops;
      s.bytes = end.bytes - begin.bytes;
      s.first_event = begin.events;
      s.end_event = end.events;
    } else {
      s.begin_ns = clock.nanoseconds_of(begin.at);
      s.end_ns = clock.nanoseconds_of(end.at);
    }
    out.push_back(std::move(s));
  }
  marks_.clear();
  spans_.clear();
  open_ = -1;
  return out;
}

std::map<std::string, double, std::less<>> StepProfile::seconds() {
  stream_.synchronize();
  std::map<std::string, double, std::less<>> seconds;
  for (const Opened& span : spans_) {
    if (span.kind != Kind::operation) continue;
    const double own = marks_[span.end].at.milliseconds_since(marks_[span.begin].at) / 1e3;
    seconds[span.label] += own;
    if (span.parent < 0) continue;
    const Opened& around = spans_[span.parent];
    if (around.kind == Kind::operation) seconds[around.label] -= own;
  }
  return seconds;
}

}  // namespace ottava
