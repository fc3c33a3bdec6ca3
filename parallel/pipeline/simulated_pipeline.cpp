#include "parallel/pipeline/simulated_pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace ottava {
namespace {

using Kind = Action::Kind;

std::vector<double> most_in_flight(const PipelineSchedule& schedule) {
  std::vector<double> most;
  for (const auto& list : schedule.ranks) {
    int now = 0, largest = 0;
    for (const Action& a : list) {
      if (a.kind == Kind::F) largest = std::max(largest, ++now);
      if (a.kind == Kind::B || a.kind == Kind::W) --now;
    }
    most.push_back(static_cast<double>(largest) / schedule.shape.chunks);
  }
  return most;
}

/// Replays programs in which the computations are the actions of the lists.
SimulatedPipeline carry_out(const PipelineSchedule& schedule, const std::vector<ReplayProgram>& programs) {
  const Replay replayed = replay(programs);
  SimulatedPipeline out;
  out.seconds = replayed.seconds;
  out.in_flight = most_in_flight(schedule);
  double busy = 0;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    std::vector<ReplayedStep>& actions = out.actions.emplace_back();
    for (size_t i = 0; i < programs[rank].size(); ++i) {
      if (programs[rank][i].kind != ReplayStep::Kind::compute) continue;
      actions.push_back(replayed.programs[rank][i]);
      busy += programs[rank][i].seconds;
    }
  }
  out.idle_share = 1 - busy / (out.seconds * programs.size());
  return out;
}

}  // namespace

double ActionCosts::of(Kind kind) const {
  switch (kind) {
    case Kind::F:
      return forward;
    case Kind::I:
      return input_gradient;
    case Kind::W:
      return weight_gradient;
    default:
      return input_gradient + weight_gradient;
  }
}

SimulatedPipeline simulate(const PipelineSchedule& schedule, const ActionCosts& costs) {
  const PipelineShape& s = schedule.shape;
  // Of a stage's forward and backward of a micro-batch.
  auto event_of = [&](int stage, int micro_batch, bool is_gradient) {
    return (static_cast<int64_t>(stage) * s.micro_batches + micro_batch) * 2 + (is_gradient ? 1 : 0);
  };
  std::vector<ReplayProgram> programs;
  for (int rank = 0; rank < s.ranks; ++rank) {
    ReplayProgram& program = programs.emplace_back();
    for (const Action& a : schedule.ranks[rank]) {
      const ReplayStep compute{.kind = ReplayStep::Kind::compute, .seconds = costs.of(a.kind)};
      if (a.kind == Kind::W) {
        program.push_back(compute);
        continue;
      }
      const bool backward = a.kind != Kind::F;
      const int stage = s.stage_of(rank, a.chunk), before = stage + (backward ? 1 : -1);
      if (before >= 0 && before < s.stages())
        program.push_back(
            {.kind = ReplayStep::Kind::wait, .event = event_of(before, a.micro_batch, backward)});
      program.push_back(compute);
      program.push_back({.kind = ReplayStep::Kind::issue, .event = event_of(stage, a.micro_batch, backward)});
    }
  }
  return carry_out(schedule, programs);
}

SimulatedPipeline simulate(const PipelineSchedule& schedule, const PipelineProgram& program,
                           const ActionCosts& costs) {
  std::vector<ReplayProgram> programs;
  for (const std::vector<PipelineStep>& steps : program.ranks) {
    ReplayProgram& replayed = programs.emplace_back();
    for (const PipelineStep& step : steps) {
      switch (step.kind) {
        case PipelineStep::Kind::run:
          replayed.push_back({.kind = ReplayStep::Kind::compute, .seconds = costs.of(step.action.kind)});
          break;
        case PipelineStep::Kind::wait:
          replayed.push_back({.kind = ReplayStep::Kind::wait, .event = step.transfer});
          break;
        default:
          replayed.push_back(
              {.kind = ReplayStep::Kind::meet, .seconds = costs.transfer, .event = step.transfer});
      }
    }
  }
  return carry_out(schedule, programs);
}

std::string picture_of(const PipelineSchedule& schedule) {
  constexpr size_t kColumns = 120;
  const SimulatedPipeline run = simulate(schedule);
  const size_t width = std::lround(run.seconds);
  std::string picture;
  for (size_t rank = 0; rank < run.actions.size(); ++rank) {
    std::string line(width, '.');
    for (size_t i = 0; i < run.actions[rank].size(); ++i) {
      const Action& a = schedule.ranks[rank][i];
      size_t at = std::lround(run.actions[rank][i].begin);
      const auto letter = static_cast<char>(a.micro_batch % 26);
      if (a.kind == Kind::F) line[at++] = static_cast<char>('0' + a.micro_batch % 10);
      if (a.kind == Kind::I || a.kind == Kind::B) line[at++] = static_cast<char>('a' + letter);
      if (a.kind == Kind::W || a.kind == Kind::B) line[at++] = static_cast<char>('A' + letter);
    }
    const std::string label = fmt::format("rank {:<3} ", rank);
    const size_t room = kColumns - label.size();
    if (line.size() > room) line = line.substr(0, room - 3) + "...";
    picture += label + line + "\n";
  }
  return picture;
}

}  // namespace ottava
