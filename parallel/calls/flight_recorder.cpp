#include "parallel/calls/flight_recorder.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/trace/step_profile.h"

namespace ottava {

void FlightRecorder::set_capacity(int64_t capacity) {
  std::lock_guard lock(mutex_);
  capacity_ = capacity;
  ring_.clear();
}

int64_t FlightRecorder::issued(CallRecord record) {
  std::lock_guard lock(mutex_);
  record.id = next_++;
  record.sequence = ++sequences_[record.axis];
  record.issued_ns = steady_nanoseconds();
  if (capacity_ == 0) return record.id;
  const size_t at = record.id % capacity_;
  // Clearing leaves empty records before the first.
  if (at >= ring_.size()) ring_.resize(at + 1);
  ring_[at] = std::move(record);
  return next_ - 1;
}

CallRecord* FlightRecorder::find(int64_t id) {
  if (id < 0 || capacity_ == 0) return nullptr;
  const size_t at = id % capacity_;
  return at < ring_.size() && ring_[at].id == id ? &ring_[at] : nullptr;
}

void FlightRecorder::began(int64_t id, int64_t at_ns) {
  std::lock_guard lock(mutex_);
  CallRecord* call = find(id);
  if (!call) return;
  call->began_ns = at_ns > 0 ? at_ns : steady_nanoseconds();
  call->state = std::max(call->state, CallRecord::State::started);
}

void FlightRecorder::ended(int64_t id, int64_t at_ns) {
  std::lock_guard lock(mutex_);
  CallRecord* call = find(id);
  if (!call) return;
  call->ended_ns = at_ns > 0 ? at_ns : steady_nanoseconds();
  call->state = CallRecord::State::completed;
}

std::vector<CallRecord> FlightRecorder::records(int64_t first) const {
  std::lock_guard lock(mutex_);
  std::vector<CallRecord> out;
  for (const CallRecord& call : ring_) {
    if (call.id >= first) out.push_back(call);
  }
  std::ranges::sort(out, {}, &CallRecord::id);
  return out;
}

int64_t FlightRecorder::next_id() const {
  std::lock_guard lock(mutex_);
  return next_;
}

void FlightRecorder::set_clock(std::shared_ptr<const DeviceClock> clock) {
  std::lock_guard lock(mutex_);
  clock_ = std::move(clock);
}

std::shared_ptr<const DeviceClock> FlightRecorder::clock() const {
  std::lock_guard lock(mutex_);
  return clock_;
}

Json flight_record(const std::vector<CallRecord>& calls, int rank, int world_size,
                   const std::string& reason) {
  constexpr std::string_view kStates[] = {"scheduled", "started", "completed"};
  auto sizes = [](int64_t elements) { return Json::Array{Json(Json::Array{elements})}; };
  auto texts = [](std::string_view text) { return Json::Array{std::string(text)}; };
  Json out, groups, entries(Json::Array{});
  for (const CallRecord& c : calls) {
    if (!groups.find(c.axis)) groups.set(c.axis, Json(Json::Object{{"size", Json(c.group_size)}}));
    entries.push(Json()
                     .set("record_id", c.id)
                     .set("collective_seq_id", c.sequence)
                     .set("pg_name", c.axis)
                     .set("profiling_name", fmt::format("{}:{}", name_of(c.collective), c.label))
                     .set("step", c.step)
                     .set("state", std::string(kStates[static_cast<size_t>(c.state)]))
                     .set("calls", c.calls)
                     .set("input_sizes", sizes(c.in_elements))
                     .set("output_sizes", sizes(c.out_elements))
                     .set("input_dtypes", texts(name_of(c.dtype)))
                     .set("output_dtypes", texts(name_of(c.dtype)))
                     .set("sent_bytes", c.sent_bytes)
                     .set("time_created_ns", c.issued_ns)
                     .set("time_discovered_started_ns", c.began_ns > 0 ? Json(c.began_ns) : Json())
                     .set("time_discovered_completed_ns", c.ended_ns > 0 ? Json(c.ended_ns) : Json())
                     .set("retired", c.state == CallRecord::State::completed));
  }
  out.set("version", "ottava 1").set("rank", rank).set("world_size", world_size).set("reason", reason);
  out.set("pg_config", groups.is_null() ? Json(Json::Object{}) : std::move(groups));
  out.set("entries", std::move(entries));
  return out;
}

}  // namespace ottava
