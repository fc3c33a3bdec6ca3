#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ottava {

/// What a rank's host asks for next.
struct ReplayStep {
  enum class Kind : uint8_t {
    compute,
    issue,  ///< a transfer that involves this rank only, or all its ranks at the same place in their lists
    meet,   ///< a transfer between two ranks, which begins when both have reached it
    wait,
  };
  Kind kind = Kind::compute;
  double seconds = 0;  ///< compute, issue, meet: how long it takes by itself
  int lane = 0;        ///< issue, meet: which of the rank's communication streams carries it out
  /// issue, meet: reached at its end; wait: what is waited for, on whichever rank. The two ends of a meet
  /// name the same event.
  int64_t event = -1;
};
using ReplayProgram = std::vector<ReplayStep>;

/// When a step ran. For a wait: from when compute stopped to when it went on.
struct ReplayedStep {
  double begin = 0, end = 0;
};
struct Replay {
  double seconds = 0;                               ///< until the compute of every rank is done
  std::vector<std::vector<ReplayedStep>> programs;  ///< by program, by step
};

/// Carries out the programs of one or several ranks. Each rank has a clock for compute and one for each
/// communication stream. A transfer begins when its rank's compute and its stream have reached it; a meet
/// begins when both ranks have. It does not delay compute, and its stream does nothing else until it has
/// ended. A wait moves compute forward to the event. Compute takes `slowdown` times as long while a stream of
/// its rank carries out issues. Events are numbered from 0; each is reached by one issue or one pair of
/// meets. Throws Error for a deadlock and for an event that no rank reaches.
Replay replay(std::span<const ReplayProgram> programs, double slowdown = 1);

}  // namespace ottava
