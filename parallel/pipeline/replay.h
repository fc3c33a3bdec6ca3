#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ottava {

/// What a rank's host asks for next.
struct ReplayStep {
  enum class Kind : uint8_t {
    compute,
    issue,  ///< a transfer that needs this rank only, or all of its ranks at the same place of their lists
    meet,   ///< a transfer between two ranks: it begins when both have come to it
    wait,
  };
  Kind kind = Kind::compute;
  double seconds = 0;  ///< compute, issue, meet: how long it takes by itself
  int lane = 0;        ///< issue, meet: which of the rank's communication streams carries it out
  /// issue, meet: what is reached at its end; wait: what is waited for, of whichever rank. The two ends of a
  /// meet name the same event.
  int64_t event = -1;
};
using ReplayProgram = std::vector<ReplayStep>;

/// When a step ran. Of a wait: from when compute stood still to when it went on.
struct ReplayedStep {
  double begin = 0, end = 0;
};
struct Replay {
  double seconds = 0;                               ///< until compute of every rank is done
  std::vector<std::vector<ReplayedStep>> programs;  ///< by program, by step
};

/// Carries out programs of one or several ranks: each has a clock for compute and one for each of its
/// communication streams. A transfer begins when its rank's compute and its stream have come to it, a meet
/// when those of both ranks have; it takes nothing of compute, and its stream does nothing else until it has
/// ended. A wait moves compute to the event. Compute that runs while a stream of its rank carries out issues
/// takes `slowdown` times as long. Events are numbered from 0 and each is reached by one issue or one pair of
/// meets. Throws Error for a deadlock and for an event that no rank reaches.
Replay replay(std::span<const ReplayProgram> programs, double slowdown = 1);

}  // namespace ottava
