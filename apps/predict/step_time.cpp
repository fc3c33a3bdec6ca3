#include "apps/predict/step_time.h"

#include <fmt/core.h>

#include <algorithm>

#include "parallel/comm/lane.h"

namespace ottava {
namespace {

std::vector<PredictedTime> times_of(const StepPlan& plan, const Machine& machine) {
  std::vector<PredictedTime> times;
  for (const RecordedOperation& o : plan.operations) times.push_back(machine.time_of(o));
  return times;
}

/// Numbers of events: those of one rank after those of another, then what two ranks of a pipeline meet for.
class Events {
 public:
  explicit Events(std::span<const StepPlan> roles) : meets_(roles.size() > 1) {
    for (const StepPlan& role : roles) {
      first_.push_back(count_);
      count_ += std::ssize(role.order.transfers);
    }
  }
  bool is_meeting(const RecordedTransfer& t) const {
    return meets_ && t.axis == "pp" && t.calls.size() == 1 &&
           (t.calls[0].collective == "send" || t.calls[0].collective == "recv");
  }
  int64_t of(size_t role, size_t index, const RecordedTransfer& t) {
    if (!is_meeting(t)) return first_[role] + index;
    const auto [found, is_new] = meetings_.try_emplace(t.calls[0].label, count_);
    if (is_new) ++count_;
    return found->second;
  }

 private:
  bool meets_;
  int64_t count_ = 0;
  std::vector<int64_t> first_;
  std::map<std::string, int64_t> meetings_;
};

ReplayProgram program_of(const StepPlan& plan, const Machine& machine,
                         const std::vector<PredictedTime>& times, Events& events, size_t role) {
  ReplayProgram program;
  program.reserve(plan.order.events.size());
  for (const RecordedEvent& event : plan.order.events) {
    const size_t index = event.index;
    if (event.kind == RecordedEvent::Kind::operation) {
      program.push_back({.kind = ReplayStep::Kind::compute, .seconds = times[index].seconds});
      continue;
    }
    const RecordedTransfer& transfer = plan.order.transfers[index];
    const int64_t reached = events.of(role, index, transfer);
    if (event.kind == RecordedEvent::Kind::wait) {
      program.push_back({.kind = ReplayStep::Kind::wait, .event = reached});
    } else {
      const bool meets = events.is_meeting(transfer);
      program.push_back({.kind = meets ? ReplayStep::Kind::meet : ReplayStep::Kind::issue,
                         .seconds = machine.seconds_of(transfer),
                         .lane = machine.device.is_gpu() ? static_cast<int>(lane_of(transfer.axis)) : 0,
                         .event = reached});
    }
  }
  return program;
}

double compute_seconds(const ReplayProgram& program, const std::vector<ReplayedStep>& steps) {
  double sum = 0;
  for (size_t i = 0; i < program.size(); ++i)
    if (program[i].kind == ReplayStep::Kind::compute) sum += steps[i].end - steps[i].begin;
  return sum;
}

// Where the time of one rank goes. `replayed` are its requests, in the order of the plan's.
StepTime time_of_rank(const StepPlan& plan, const std::vector<ReplayedStep>& replayed,
                      const Machine& machine) {
  const std::vector<PredictedTime> times = times_of(plan, machine);
  std::vector<std::string> classes;
  for (const RecordedOperation& o : plan.operations) classes.push_back(class_of(o));
  StepTime out;
  auto add = [](StepTime::Part& part, double seconds) { part.seconds += seconds, ++part.calls; };
  for (size_t i = 0; i < replayed.size(); ++i) {
    const RecordedEvent& event = plan.order.events[i];
    const size_t index = event.index;
    const double seconds = replayed[i].end - replayed[i].begin;
    const std::string& label = plan.order.labels[event.label];
    if (event.kind == RecordedEvent::Kind::operation) {
      out.compute += seconds;
      out.by_source[static_cast<size_t>(times[index].source)] += seconds;
      add(out.classes[classes[index]], seconds);
      add(out.labels[label], seconds);
      continue;
    }
    const RecordedTransfer& transfer = plan.order.transfers[index];
    if (transfer.ranks == 1) continue;
    StepTime::Part& part = out.axes[fmt::format("{} {}", transfer.axis, transfer.calls[0].collective)];
    if (event.kind == RecordedEvent::Kind::issue) {
      out.transfers += seconds;
      add(part, seconds);
    } else {
      out.exposed += seconds;
      part.exposed += seconds;
      out.labels[label].exposed += seconds;
    }
  }
  return out;
}

}  // namespace

std::vector<ReplayProgram> programs_of(std::span<const StepPlan> roles, const Machine& machine) {
  Events events(roles);
  std::vector<ReplayProgram> programs;
  for (size_t role = 0; role < roles.size(); ++role)
    programs.push_back(program_of(roles[role], machine, times_of(roles[role], machine), events, role));
  return programs;
}

StepTime predict_step(const StepPlan& plan, const Machine& machine) {
  return predict_step(std::span(&plan, 1), machine);
}

StepTime predict_step(std::span<const StepPlan> roles, const Machine& machine) {
  const std::vector<ReplayProgram> programs = programs_of(roles, machine);
  const Replay replayed = replay(programs, machine.device.overlap_slowdown);
  size_t longest = 0;
  double most = -1, busy = 0;
  for (size_t role = 0; role < roles.size(); ++role) {
    const double seconds = compute_seconds(programs[role], replayed.programs[role]);
    busy += seconds;
    if (seconds > most) most = seconds, longest = role;
  }
  StepTime out = time_of_rank(roles[longest], replayed.programs[longest], machine);
  out.seconds = replayed.seconds;
  out.error = machine.device.error_percent / 100;
  if (roles.size() > 1) out.idle_share = 1 - busy / (out.seconds * roles.size());
  return out;
}

std::string StepTime::bound_by() const {
  std::string name;
  double most = -1;
  for (const auto& [key, part] : classes)
    if (part.seconds > most) most = part.seconds, name = key;
  for (const auto& [key, part] : axes)
    if (part.exposed > most) most = part.exposed, name = key;
  return name;
}

std::string why_slower(const StepTime& first, const StepTime& second) {
  std::string what;
  double most = 0;
  auto compare = [&](const std::map<std::string, StepTime::Part>& a,
                     const std::map<std::string, StepTime::Part>& b, double StepTime::Part::*value,
                     std::string_view verb) {
    for (const auto& [name, part] : b) {
      const auto other = a.find(name);
      const double more = part.*value - (other == a.end() ? 0 : other->second.*value);
      if (more <= most) continue;
      most = more;
      what = fmt::format("{:.1f} ms more {} {}", more * 1e3, verb, name);
    }
  };
  compare(first.classes, second.classes, &StepTime::Part::seconds, "of");
  compare(first.axes, second.axes, &StepTime::Part::exposed, "waiting for");
  return what.empty() ? "as fast" : what;
}

std::vector<OperationForecast> predict_operations(const StepPlan& plan, const Machine& machine) {
  std::vector<OperationForecast> out;
  for (const RecordedOperation& o : plan.operations) out.push_back({&o, machine.time_of(o)});
  std::ranges::stable_sort(out, std::ranges::greater{},
                           [](const OperationForecast& f) { return f.time.seconds * f.operation->calls; });
  return out;
}

}  // namespace ottava
