#include "apps/train/rank_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace ottava {
namespace {

using Kind = StepProfile::Kind;
using Span = StepProfile::Span;

enum Track { kHost, kData, kCompute, kFirstAxis = 10, kCopies = 90, kSaves };

/// The parts of a span that are in none of the spans inside it.
std::vector<Interval> own_parts(const std::vector<Span>& spans, size_t index) {
  std::vector<Interval> parts;
  int64_t at = spans[index].begin_ns;
  for (size_t i = index + 1; i < spans.size() && spans[i].begin_ns < spans[index].end_ns; ++i) {
    if (spans[i].parent != static_cast<int>(index)) continue;
    if (spans[i].begin_ns > at) parts.push_back({at, spans[i].begin_ns});
    at = spans[i].end_ns;
  }
  if (spans[index].end_ns > at) parts.push_back({at, spans[index].end_ns});
  return parts;
}

// How tools for PyTorch's traces recognise communication: by a name that begins with nccl and contains
// Kernel, whatever moves the bytes.
std::string call_name(const CallRecord& call) {
  constexpr std::string_view kNames[] = {"AllReduce", "ReduceScatter", "AllGather", "AllToAll",
                                         "Send",      "Recv",          "Barrier",   "Graph"};
  return fmt::format("ncclKernel_{} {}", kNames[static_cast<size_t>(call.collective)], call.label);
}

std::string_view kineto_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "Float";
    case DType::bf16:
      return "BFloat16";
    case DType::f64:
      return "Double";
    case DType::i32:
      return "Int";
    case DType::i64:
      return "Long";
    default:
      return name_of(dtype);
  }
}

constexpr size_t kMostBytes = 50'000'000;

class Writer {
 public:
  explicit Writer(const TracedSteps& traced)
      : traced_(traced), trace_(traced.rank, traced.origin_ns + traced.clock.nanoseconds) {}

  std::string write() {
    add_tracks();
    for (const HostSpans::Span& s : traced_.host_spans) {
      const int track = s.track == HostSpans::Track::host   ? kHost
                        : s.track == HostSpans::Track::data ? kData
                                                            : kSaves;
      trace_.slice({track, s.name, "user_annotation", s.begin_ns, s.end_ns});
    }
    const std::map<int64_t, double> seconds = planned_calls();
    for (const CallRecord& call : traced_.calls) {
      const auto planned = seconds.find(call.id);
      add_call(call, planned == seconds.end() ? nullptr : &planned->second);
    }
    bool planned = true;
    for (const TracedSteps::Step& step : traced_.steps) {
      trace_.slice({kHost, fmt::format("ProfilerStep#{}", step.number), "user_annotation", step.begin_ns,
                    step.end_ns});
      planned &= add_step(step);
    }
    add_about(planned);
    return trace_.text();
  }

 private:
  void add_tracks() {
    trace_.track(kHost, "host");
    trace_.track(kData, "data");
    trace_.track(kCompute, "compute");
    for (const CallRecord& call : traced_.calls) axes_.try_emplace(call.axis, 0);
    int next = kFirstAxis;
    for (auto& [axis, track] : axes_) trace_.track(track = next++, "axis " + axis);
    trace_.track(kCopies, "copies");
    trace_.track(kSaves, "saves");
    for (const CallRecord& call : traced_.calls) calls_[call.id] = &call;
  }

  /// Planned seconds by id, for steps whose calls include those that are planned.
  std::map<int64_t, double> planned_calls() const {
    std::map<int64_t, std::vector<const CallRecord*>> steps;
    for (const CallRecord& call : traced_.calls) steps[call.step].push_back(&call);
    std::map<int64_t, double> out;
    for (const auto& [number, calls] : steps) {
      std::map<int64_t, double> of_step;
      auto next = traced_.planned_calls.begin();
      for (const CallRecord* call : calls) {
        if (next == traced_.planned_calls.end()) break;
        if (next->axis != call->axis || next->label != call->label) continue;
        of_step[call->id] = next++->seconds;
      }
      if (next == traced_.planned_calls.end()) out.merge(of_step);
    }
    return out;
  }

  void add_call(const CallRecord& c, const double* planned_seconds) {
    if (c.began_ns == 0 || c.ended_ns == 0) return;
    const int track = axes_.at(c.axis);
    const double seconds = (c.ended_ns - c.began_ns) * 1e-9;
    Json args;
    args.set("stream", track)
        .set("Collective name", name_of(c.collective))
        .set("In msg nelems", c.in_elements)
        .set("Out msg nelems", c.out_elements)
        .set("Group size", c.group_size)
        .set("dtype", kineto_name(c.dtype))
        .set("Process Group Name", c.axis)
        .set("Seq", c.sequence)
        .set("calls", c.calls)
        .set("payload bytes", c.payload_bytes)
        .set("sent bytes", c.sent_bytes)
        .set("GB/s", seconds > 0 ? c.sent_bytes * 1e-9 / seconds : 0.0)
        .set("step", c.step);
    if (planned_seconds) args.set("planned us", *planned_seconds * 1e6);
    trace_.slice({track, call_name(c), "kernel", c.began_ns, c.ended_ns}, args);
    trace_.arrow(2 * c.id, {kHost, c.issued_ns}, {track, c.began_ns});
  }

  /// Whether the step did what is planned.
  bool add_step(const TracedSteps::Step& step) {
    for (const Span& copy : step.copies) {
      trace_.slice({kCopies, "Memcpy HtoD " + copy.label, "gpu_memcpy", copy.begin_ns, copy.end_ns},
                   Json::Object{{"stream", kCopies}});
    }
    const std::vector<const Span*> planned = planned_of(step.compute);
    for (size_t i = 0; i < step.compute.size(); ++i) add_span(step.compute, i, planned[i]);
    return std::ranges::none_of(planned, [](const Span* p) { return p == &kUnplanned; });
  }

  std::vector<const Span*> planned_of(const std::vector<Span>& spans) const {
    std::vector<const Span*> out(spans.size(), nullptr);
    size_t next = 0;
    bool matches = true;
    for (size_t i = 0; i < spans.size() && matches; ++i) {
      if (spans[i].kind == Kind::wait) continue;
      matches = next < traced_.planned.size() && traced_.planned[next].label == spans[i].label;
      if (matches) out[i] = &traced_.planned[next++];
    }
    if (!matches || next != traced_.planned.size()) out.assign(spans.size(), &kUnplanned);
    return out;
  }

  void add_span(const std::vector<Span>& spans, size_t index, const Span* planned) {
    const Span& s = spans[index];
    if (s.kind == Kind::wait) return add_wait(s);
    if (s.kind == Kind::pass)
      return trace_.slice({kCompute, s.label, "user_annotation", s.begin_ns, s.end_ns});
    if (trace_.bytes() > kMostBytes) {
      is_cut_ = true;
      return;
    }
    const std::vector<Interval> parts = own_parts(spans, index);
    int64_t own = 0;
    for (const Interval& part : parts) own += part.end - part.begin;
    // What makes a slice a device's work for tools: the parts have it, an operation around them does not.
    const Json stream(Json::Object{{"stream", kCompute}});
    const bool is_whole = parts.size() == 1 && own == s.end_ns - s.begin_ns;
    Json args = is_whole ? stream : Json(Json::Object{});
    if (planned && planned != &kUnplanned && planned->bytes > 0) {
      args.set("planned FLOPs", planned->flops).set("planned bytes", planned->bytes);
      if (!traced_.planned_seconds.empty())
        args.set("planned us", 1e6 * traced_.planned_seconds[planned - traced_.planned.data()]);
      if (own > 0) args.set("TFLOP/s", planned->flops / own * 1e-3);
    }
    if (!is_whole) trace_.slice({kCompute, s.label, "operation", s.begin_ns, s.end_ns}, args);
    for (const Interval& part : parts) {
      trace_.slice({kCompute, s.label, "kernel", part.begin, part.end}, is_whole ? args : stream);
    }
  }

  void add_wait(const Span& s) {
    int64_t id = -1;
    std::from_chars(s.label.data(), s.label.data() + s.label.size(), id);
    const auto call = calls_.find(id);
    if (call == calls_.end()) return;
    const CallRecord& c = *call->second;
    trace_.slice(
        {kCompute, fmt::format("wait {} {}", name_of(c.collective), c.label), "wait", s.begin_ns, s.end_ns});
    if (c.ended_ns > c.began_ns && s.end_ns > s.begin_ns)
      trace_.arrow(2 * id + 1, {axes_.at(c.axis), c.ended_ns - 1}, {kCompute, s.end_ns - 1});
  }

  void add_about(bool planned) {
    const TimeSplit split = split_of(traced_);
    Json about, steps(Json::Array{});
    for (const TracedSteps::Step& step : traced_.steps) steps.push(step.number);
    about.set("schema", 1)
        .set("steps", std::move(steps))
        .set("host", traced_.host)
        .set("planned", planned)
        .set("is_cut", is_cut_ || traced_.lost_calls > 0)
        .set("clock_offset_ns", traced_.clock.nanoseconds)
        .set("clock_uncertainty_ns", traced_.clock.uncertainty_ns)
        .set("split_ns", Json::Object{{"total", split.total},
                                      {"compute", split.compute},
                                      {"communication", split.communication},
                                      {"exposed", split.exposed},
                                      {"idle", split.idle}});
    trace_.about("ottava", std::move(about));
    trace_.about("baseTimeNanoseconds", traced_.origin_unix_ns);
  }

  static const Span kUnplanned;
  const TracedSteps& traced_;
  ChromeTrace trace_;
  std::map<std::string, int> axes_;
  std::map<int64_t, const CallRecord*> calls_;
  bool is_cut_ = false;
};

const Span Writer::kUnplanned{};

}  // namespace

TimeSplit split_of(const TracedSteps& traced) {
  std::vector<Interval> compute, communication;
  for (const TracedSteps::Step& step : traced.steps) {
    for (size_t i = 0; i < step.compute.size(); ++i) {
      if (step.compute[i].kind != Kind::operation) continue;
      const std::vector<Interval> own = own_parts(step.compute, i);
      compute.insert(compute.end(), own.begin(), own.end());
    }
  }
  for (const CallRecord& call : traced.calls) {
    if (call.began_ns > 0 && call.ended_ns > 0) communication.push_back({call.began_ns, call.ended_ns});
  }
  return split_time(compute, communication);
}

std::string trace_text(const TracedSteps& traced) { return Writer(traced).write(); }

}  // namespace ottava
