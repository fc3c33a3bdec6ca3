#include "apps/predict/step_time.h"

#include <fmt/core.h>

#include <algorithm>

namespace ottava {
namespace {

std::vector<PredictedTime> times_of(const StepPlan& plan, const Machine& machine) {
  std::vector<PredictedTime> times;
  for (const RecordedOperation& o : plan.operations) times.push_back(machine.time_of(o));
  return times;
}

ReplayProgram program_of(const StepPlan& plan, const Machine& machine,
                         const std::vector<PredictedTime>& times) {
  ReplayProgram program;
  program.reserve(plan.order.events.size());
  for (const RecordedEvent& event : plan.order.events) {
    const auto index = static_cast<size_t>(event.index);
    switch (event.kind) {
      case RecordedEvent::Kind::operation:
        program.push_back({.kind = ReplayStep::Kind::compute, .seconds = times[index].seconds});
        break;
      case RecordedEvent::Kind::issue:
        program.push_back({.kind = ReplayStep::Kind::issue,
                           .seconds = machine.seconds_of(plan.order.transfers[index]),
                           .event = event.index});
        break;
      case RecordedEvent::Kind::wait:
        program.push_back({.kind = ReplayStep::Kind::wait, .event = event.index});
    }
  }
  return program;
}

}  // namespace

ReplayProgram program_of(const StepPlan& plan, const Machine& machine) {
  return program_of(plan, machine, times_of(plan, machine));
}

StepTime predict_step(const StepPlan& plan, const Machine& machine) {
  const std::vector<PredictedTime> times = times_of(plan, machine);
  const ReplayProgram program = program_of(plan, machine, times);
  const Replay replayed = replay({&program, 1}, machine.device.overlap_slowdown);
  std::vector<std::string> classes;
  for (const RecordedOperation& o : plan.operations) classes.push_back(class_of(o));
  StepTime out;
  out.seconds = replayed.seconds;
  out.error = machine.device.error_percent / 100;
  auto add = [](StepTime::Part& part, double seconds, double exposed) {
    part.seconds += seconds, part.exposed += exposed, ++part.calls;
  };
  for (size_t i = 0; i < program.size(); ++i) {
    const RecordedEvent& event = plan.order.events[i];
    const auto index = static_cast<size_t>(event.index);
    const double seconds = replayed.programs[0][i].end - replayed.programs[0][i].begin;
    const std::string& label = plan.order.labels[static_cast<size_t>(event.label)];
    if (event.kind == RecordedEvent::Kind::operation) {
      out.compute += seconds;
      out.by_source[static_cast<size_t>(times[index].source)] += seconds;
      add(out.classes[classes[index]], seconds, 0);
      add(out.labels[label], seconds, 0);
      continue;
    }
    const RecordedTransfer& transfer = plan.order.transfers[index];
    if (transfer.ranks == 1) continue;
    StepTime::Part& part = out.axes[fmt::format("{} {}", transfer.axis, transfer.calls[0].collective)];
    if (event.kind == RecordedEvent::Kind::issue) {
      out.transfers += seconds;
      add(part, seconds, 0);
    } else {
      out.exposed += seconds;
      part.exposed += seconds;
      out.labels[label].exposed += seconds;
    }
  }
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

std::vector<OperationForecast> predict_operations(const StepPlan& plan, const Machine& machine) {
  std::vector<OperationForecast> out;
  for (const RecordedOperation& o : plan.operations) out.push_back({&o, machine.time_of(o)});
  std::ranges::stable_sort(out, std::ranges::greater{}, [](const OperationForecast& f) {
    return f.time.seconds * static_cast<double>(f.operation->calls);
  });
  return out;
}

}  // namespace ottava
