#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ottava {

/// What a rank's host asks for next.
struct ReplayStep {
  enum class Kind : uint8_t { compute, issue, wait };
  Kind kind = Kind::compute;
  double seconds = 0;  ///< compute, issue: how long it takes by itself
  int lane = 0;        ///< issue: which of the rank's communication streams carries it out
  int64_t event = -1;  ///< issue: what is reached at its end; wait: what is waited for, of whichever rank
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
/// communication streams. An issue begins when both its rank's compute and its stream have come to it and
/// takes nothing of compute; a wait moves compute to the event. Compute that runs while a stream of its rank
/// is busy takes `slowdown` times as long. Events are numbered from 0 and each is reached by one issue.
/// Throws Error where ranks wait for one another for ever or for an event that no rank reaches.
Replay replay(std::span<const ReplayProgram> programs, double slowdown = 1);

}  // namespace ottava
