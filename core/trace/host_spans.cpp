#include "core/trace/host_spans.h"

#include <utility>

#include "core/trace/step_profile.h"

namespace ottava {

HostSpans::Scope::Scope(HostSpans* spans, Track track, std::string name) : spans_(spans) {
  if (!spans_) return;
  std::lock_guard lock(spans_->mutex_);
  span_ = spans_->spans_.insert(spans_->spans_.end(), {track, std::move(name), steady_nanoseconds(), 0});
}

HostSpans::Scope::~Scope() {
  if (!spans_) return;
  std::lock_guard lock(spans_->mutex_);
  span_->end_ns = steady_nanoseconds();
}

std::vector<HostSpans::Span> HostSpans::since(int64_t begin_ns) const {
  std::lock_guard lock(mutex_);
  std::vector<Span> out;
  for (const Span& span : spans_) {
    if (span.end_ns != 0 && span.end_ns < begin_ns) continue;
    out.push_back(span);
    if (span.end_ns == 0) out.back().end_ns = steady_nanoseconds();
  }
  return out;
}

void HostSpans::forget_ended() {
  std::lock_guard lock(mutex_);
  spans_.remove_if([](const Span& span) { return span.end_ns != 0; });
}

}  // namespace ottava
