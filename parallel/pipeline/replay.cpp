#include "parallel/pipeline/replay.h"

#include <algorithm>
#include <deque>

#include "core/error.h"

namespace ottava {
namespace {

constexpr double kNever = -1;

struct ReplayedEvent {
  double reached = kNever;
  int arrivals = 0;  ///< of the two ranks of a meet
  double begin = 0;  ///< of a meet: when the later one arrived
};

class Rank {
 public:
  Rank(const ReplayProgram& program, double slowdown)
      : program_(program), slowdown_(slowdown), done_(program.size()) {}

  /// Goes as far as the events known so far allow. Returns false if that was no step at all.
  bool advance(std::vector<ReplayedEvent>& events) {
    moved_ = false;
    for (Lane& lane : lanes_) carry_out(lane, events);
    while (position_ < program_.size() && take(events)) ++position_, moved_ = true;
    return moved_;
  }
  /// The step that is stuck; program.size() if none is.
  size_t stuck() const {
    size_t first = position_;
    for (const Lane& lane : lanes_)
      if (!lane.waiting.empty()) first = std::min(first, lane.waiting.front());
    return position_ < program_.size() ? position_ : first;
  }
  double seconds() const { return now_; }
  std::vector<ReplayedStep> steps() && { return std::move(done_); }

 private:
  struct Lane {
    std::deque<size_t> waiting;  ///< transfers that have not begun, in order
    double free = 0;
    bool arrived = false;  ///< the first of them, at its meeting
  };

  bool take(std::vector<ReplayedEvent>& events) {
    const ReplayStep& step = program_[position_];
    ReplayedStep& done = done_[position_];
    switch (step.kind) {
      case ReplayStep::Kind::compute:
        done = {now_, now_ + under_traffic(step.seconds)};
        now_ = done.end;
        return true;
      case ReplayStep::Kind::wait: {
        const double reached = events[step.event].reached;
        if (reached == kNever) return false;
        done = {now_, std::max(now_, reached)};
        now_ = done.end;
        return true;
      }
      default: {
        const size_t lane = step.lane;
        if (lanes_.size() <= lane) lanes_.resize(lane + 1);
        done.begin = now_;
        lanes_[lane].waiting.push_back(position_);
        carry_out(lanes_[lane], events);
        return true;
      }
    }
  }

  void carry_out(Lane& lane, std::vector<ReplayedEvent>& events) {
    while (!lane.waiting.empty()) {
      const ReplayStep& step = program_[lane.waiting.front()];
      ReplayedStep& done = done_[lane.waiting.front()];
      ReplayedEvent& event = events[step.event];
      done.begin = std::max(done.begin, lane.free);
      if (step.kind == ReplayStep::Kind::meet) {
        if (!lane.arrived) {
          lane.arrived = moved_ = true;
          event.begin = std::max(event.begin, done.begin);
          ++event.arrivals;
        }
        if (event.arrivals < 2) return;
        done.begin = event.begin;
      }
      lane.free = done.end = event.reached = done.begin + step.seconds;
      if (step.kind == ReplayStep::Kind::issue) busy_ = std::max(busy_, lane.free);
      lane.waiting.pop_front();
      lane.arrived = false;
      moved_ = true;
    }
  }

  // Issues, if any, are carried out from now to busy_.
  double under_traffic(double seconds) const {
    const double beside = std::clamp(busy_ - now_, 0.0, seconds * slowdown_);
    return seconds + beside - beside / slowdown_;
  }

  const ReplayProgram& program_;
  double slowdown_, now_ = 0, busy_ = 0;
  size_t position_ = 0;
  bool moved_ = false;
  std::vector<Lane> lanes_;
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
  std::vector<ReplayedEvent> events(last + 1);
  for (bool moves = true; moves;) {
    moves = false;
    for (Rank& rank : ranks) moves |= rank.advance(events);
  }
  Replay out;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const size_t stuck = ranks[r].stuck();
    if (stuck < programs[r].size()) {
      const ReplayStep& step = programs[r][stuck];
      fail("replay", "rank {} is stuck at step {} of {}: {} event {}", r, stuck, programs[r].size(),
           step.kind == ReplayStep::Kind::meet ? "no other rank comes to" : "no rank reaches", step.event);
    }
    out.seconds = std::max(out.seconds, ranks[r].seconds());
    out.programs.push_back(std::move(ranks[r]).steps());
  }
  return out;
}

}  // namespace ottava
