#include "apps/predict/predicted_trace.h"

#include <fmt/core.h>

#include <cmath>
#include <map>

#include "core/trace/chrome_trace.h"

namespace ottava {
namespace {

enum Track { kHost, kCompute = 2, kFirstAxis = 10 };

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

Json operation_args(const RecordedOperation& o, double seconds) {
  return Json()
      .set("stream", kCompute)
      .set("operation", o.op)
      .set("operands", o.operands)
      .set("planned us", seconds * 1e6)
      .set("planned FLOPs", o.flops)
      .set("planned bytes", o.bytes);
}

Json transfer_args(const RecordedTransfer& t, int track, double seconds) {
  return Json()
      .set("stream", track)
      .set("Collective name", t.calls[0].collective)
      .set("Group size", t.ranks)
      .set("Process Group Name", t.axis)
      .set("calls", std::ssize(t.calls))
      .set("payload bytes", t.payload_bytes())
      .set("sent bytes", t.sent_bytes())
      .set("planned us", seconds * 1e6);
}

std::string trace_of(const StepPlan& plan, const std::vector<ReplayedStep>& steps, double seconds,
                     const ChromeTrace::Rank& rank) {
  ChromeTrace trace(rank, 0);
  trace.track(kHost, "host");
  trace.track(kCompute, "compute");
  std::map<std::string, int> axes;
  for (const RecordedTransfer& t : plan.order.transfers)
    if (t.ranks > 1) axes.try_emplace(t.axis, 0);
  int next = kFirstAxis;
  for (auto& [axis, track] : axes) trace.track(track = next++, "axis " + axis);
  trace.slice({kHost, "ProfilerStep#1", "user_annotation", 0, nanoseconds(seconds)});
  for (size_t i = 0; i < steps.size(); ++i) {
    const RecordedEvent& event = plan.order.events[i];
    const size_t index = event.index;
    const ReplayedStep& ran = steps[i];
    const int64_t begin = nanoseconds(ran.begin), end = nanoseconds(ran.end);
    if (event.kind == RecordedEvent::Kind::operation) {
      const RecordedOperation& o = plan.operations[index];
      const std::string& label = plan.order.labels[event.label];
      trace.slice({kCompute, label.empty() ? o.op : label, "kernel", begin, end},
                  operation_args(o, ran.end - ran.begin));
      continue;
    }
    const RecordedTransfer& t = plan.order.transfers[index];
    if (t.ranks == 1) continue;
    const std::string call = fmt::format("{} {}", t.calls[0].collective, t.calls[0].label);
    if (event.kind == RecordedEvent::Kind::wait) {
      if (end > begin) trace.slice({kCompute, "wait " + call, "wait", begin, end});
      continue;
    }
    const int track = axes.at(t.axis);
    trace.slice({track, "ncclKernel " + call, "kernel", begin, end},
                transfer_args(t, track, ran.end - ran.begin));
  }
  trace.about(
      "ottava",
      Json().set("schema", 1).set("steps", Json::Array{1}).set("host", "planned").set("planned", true));
  return trace.text();
}

}  // namespace

std::string predicted_trace(std::span<const StepPlan> roles, const Machine& machine,
                            const std::string& name) {
  const Replay replayed = replay(programs_of(roles, machine), machine.device.overlap_slowdown);
  std::vector<TraceFile> files;
  for (size_t role = 0; role < roles.size(); ++role) {
    files.push_back(
        {name, trace_of(roles[role], replayed.programs[role], replayed.seconds,
                        {.rank = static_cast<int>(role),
                         .world_size = static_cast<int>(roles.size()),
                         .name = roles.size() > 1 ? fmt::format("{}, stage rank {}", name, role) : name,
                         .backend = "planned"})});
  }
  return merged_traces(files);
}

}  // namespace ottava
