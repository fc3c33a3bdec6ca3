#include "parallel/pipeline/pipeline_program.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "parallel/pipeline/simulated_pipeline.h"

namespace ottava {
namespace {

using Kind = Action::Kind;

bool makes_gradient(const Action& a) { return a.kind == Kind::B || a.kind == Kind::I; }

/// Stage that made it, micro-batch, whether it is a gradient.
using Key = std::tuple<int, int, bool>;
Key key_of(const StageTransfer& t) { return {t.stage, t.micro_batch, t.is_gradient}; }

/// The transfers in the order of a run in which nothing holds them up. Of transfers at the same time, those
/// from even ranks to odd ones come first, since these have no rank in common.
std::vector<StageTransfer> ordered_transfers(const PipelineSchedule& schedule) {
  const PipelineShape& s = schedule.shape;
  const SimulatedPipeline run = simulate(schedule);
  std::vector<std::pair<double, StageTransfer>> timed;
  for (int rank = 0; rank < s.ranks; ++rank) {
    const auto& list = schedule.ranks[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == Kind::W) continue;
      const int stage = s.stage_of(rank, list[i].chunk), next = stage + (makes_gradient(list[i]) ? -1 : 1);
      if (next < 0 || next >= s.stages() || s.rank_of(next) == rank) continue;
      timed.push_back({run.actions[rank][i].end,
                       {.from = rank,
                        .to = s.rank_of(next),
                        .stage = stage,
                        .micro_batch = list[i].micro_batch,
                        .is_gradient = makes_gradient(list[i])}});
    }
  }
  std::ranges::sort(timed, {}, [](const auto& t) {
    return std::tuple(t.first, t.second.from % 2, t.second.is_gradient, t.second.stage, t.second.micro_batch);
  });
  std::vector<StageTransfer> transfers;
  for (const auto& [time, transfer] : timed) transfers.push_back(transfer);
  return transfers;
}

/// The steps of one rank, without waits for what it has sent.
class RankProgram {
 public:
  RankProgram(const PipelineSchedule& schedule, int rank, const std::vector<StageTransfer>& transfers,
              Receives receives)
      : shape_(schedule.shape), rank_(rank), list_(schedule.ranks[rank]) {
    for (size_t t = 0; t < transfers.size(); ++t) {
      if (transfers[t].from != rank && transfers[t].to != rank) continue;
      place_[key_of(transfers[t])] = mine_.size();
      mine_.push_back({static_cast<int64_t>(t), transfers[t].from == rank});
    }
    for (size_t i = 0; i < list_.size(); ++i) {
      start_until(input_of(list_[i]));
      if (receives == Receives::early && i + 1 < list_.size()) start_receives(input_of(list_[i + 1]));
      if (const size_t in = input_of(list_[i]); in != kNone)
        steps_.push_back({PipelineStep::Kind::wait, mine_[in].transfer});
      steps_.push_back({PipelineStep::Kind::run, -1, list_[i]});
      if (const size_t out = output_of(list_[i]); out != kNone) start_until(out);
    }
  }
  std::vector<PipelineStep> take() { return std::move(steps_); }

 private:
  static constexpr size_t kNone = ~size_t{0};
  struct Mine {
    int64_t transfer;
    bool is_send;
  };

  size_t find(const Key& key) const {
    const auto found = place_.find(key);
    return found == place_.end() ? kNone : found->second;
  }
  size_t input_of(const Action& a) const {
    if (a.kind == Kind::W) return kNone;
    const int stage = shape_.stage_of(rank_, a.chunk);
    return find({makes_gradient(a) ? stage + 1 : stage - 1, a.micro_batch, makes_gradient(a)});
  }
  size_t output_of(const Action& a) const {
    if (a.kind == Kind::W) return kNone;
    return find({shape_.stage_of(rank_, a.chunk), a.micro_batch, makes_gradient(a)});
  }
  void start() {
    const Mine& next = mine_[started_++];
    steps_.push_back({next.is_send ? PipelineStep::Kind::send : PipelineStep::Kind::recv, next.transfer});
  }
  /// All of the rank's transfers up to this one.
  void start_until(size_t last) {
    while (last != kNone && started_ <= last) start();
  }
  /// The same, but only as far as there is no send, whose data is not made yet.
  void start_receives(size_t last) {
    while (last != kNone && started_ <= last && !mine_[started_].is_send) start();
  }

  const PipelineShape& shape_;
  int rank_;
  const std::vector<Action>& list_;
  std::vector<Mine> mine_;
  std::map<Key, size_t> place_;
  size_t started_ = 0;
  std::vector<PipelineStep> steps_;
};

/// Adds the waits for what was sent, one action after the first that begins, in a simulated run, after the
/// reader has begun.
void give_back(const PipelineSchedule& schedule, PipelineProgram& program) {
  const PipelineShape& s = schedule.shape;
  const SimulatedPipeline run = simulate(schedule, program);
  std::map<Key, double> read;  // when, by what was sent
  for (int rank = 0; rank < s.ranks; ++rank) {
    const auto& list = schedule.ranks[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == Kind::W) continue;
      const int stage = s.stage_of(rank, list[i].chunk), maker = stage + (makes_gradient(list[i]) ? 1 : -1);
      read[{maker, list[i].micro_batch, makes_gradient(list[i])}] = run.actions[rank][i].begin;
    }
  }
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const std::vector<ReplayedStep>& actions = run.actions[rank];
    std::vector<PipelineStep> steps;
    std::vector<std::pair<int64_t, size_t>> sent;  // transfer, action before which its memory is given back
    auto give_back_before = [&](size_t action) {
      std::erase_if(sent, [&](const auto& transfer) {
        if (transfer.second > action) return false;
        steps.push_back({PipelineStep::Kind::wait, transfer.first});
        return true;
      });
    };
    size_t action = 0;
    for (const PipelineStep& step : program.ranks[rank]) {
      if (step.kind == PipelineStep::Kind::run) give_back_before(action++);
      steps.push_back(step);
      if (step.kind != PipelineStep::Kind::send) continue;
      const double begin = read.at(key_of(program.transfers[step.transfer]));
      size_t until = action;
      while (until < actions.size() && actions[until].begin < begin) ++until;
      sent.push_back({step.transfer, until + 1});
    }
    for (const auto& [transfer, until] : sent) steps.push_back({PipelineStep::Kind::wait, transfer});
    program.ranks[rank] = std::move(steps);
  }
}

}  // namespace

PipelineProgram make_program(const PipelineSchedule& schedule, Receives receives) {
  PipelineProgram out{ordered_transfers(schedule), {}};
  for (int rank = 0; rank < schedule.shape.ranks; ++rank)
    out.ranks.push_back(RankProgram(schedule, rank, out.transfers, receives).take());
  give_back(schedule, out);
  return out;
}

}  // namespace ottava
