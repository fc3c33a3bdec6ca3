#include "apps/predict/replay.h"

#include <algorithm>

#include "core/error.h"

namespace ottava {
namespace {

constexpr double kNever = -1;

class Rank {
 public:
  Rank(const ReplayProgram& program, double slowdown) : program_(program), slowdown_(slowdown) {}

  /// Goes as far as the events allow that are known so far. False if that was nowhere.
  bool advance(std::vector<double>& events) {
    const size_t before = done_.size();
    while (!is_done() && take(program_[done_.size()], events)) continue;
    return done_.size() > before;
  }
  bool is_done() const { return done_.size() == program_.size(); }
  size_t position() const { return done_.size(); }
  double seconds() const { return now_; }
  std::vector<ReplayedStep> steps() && { return std::move(done_); }

 private:
  bool take(const ReplayStep& step, std::vector<double>& events) {
    switch (step.kind) {
      case ReplayStep::Kind::compute:
        done_.push_back({now_, now_ + under_traffic(step.seconds)});
        now_ = done_.back().end;
        return true;
      case ReplayStep::Kind::issue: {
        const auto lane = static_cast<size_t>(step.lane);
        if (lanes_.size() <= lane) lanes_.resize(lane + 1, 0);
        const double begin = std::max(now_, lanes_[lane]);
        done_.push_back({begin, begin + step.seconds});
        lanes_[lane] = done_.back().end;
        busy_ = std::max(busy_, lanes_[lane]);
        events[static_cast<size_t>(step.event)] = lanes_[lane];
        return true;
      }
      default: {
        const double reached = events[static_cast<size_t>(step.event)];
        if (reached == kNever) return false;
        done_.push_back({now_, std::max(now_, reached)});
        now_ = done_.back().end;
        return true;
      }
    }
  }
  // Streams are busy from now to busy_, if at all.
  double under_traffic(double seconds) const {
    const double beside = std::clamp(busy_ - now_, 0.0, seconds * slowdown_);
    return seconds + beside - beside / slowdown_;
  }

  const ReplayProgram& program_;
  double slowdown_, now_ = 0, busy_ = 0;
  std::vector<double> lanes_;
  std::vector<ReplayedStep> done_;
};

}  // namespace

Replay replay(std::span<const ReplayProgram> programs, double slowdown) {
  int64_t last = -1;
  std::vector<Rank> ranks;
  for (const ReplayProgram& program : programs) {
    ranks.emplace_back(program, slowdown);
    for (const ReplayStep& step : program) last = std::max(last, step.event);
  }
  std::vector<double> events(static_cast<size_t>(last + 1), kNever);
  for (bool moves = true; moves;) {
    moves = false;
    for (Rank& rank : ranks) moves |= rank.advance(events);
  }
  Replay out;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].is_done())
      fail("replay", "rank {} waits for ever at step {} of {}: no rank reaches event {}", r,
           ranks[r].position(), programs[r].size(), programs[r][ranks[r].position()].event);
    out.seconds = std::max(out.seconds, ranks[r].seconds());
    out.programs.push_back(std::move(ranks[r]).steps());
  }
  return out;
}

}  // namespace ottava
