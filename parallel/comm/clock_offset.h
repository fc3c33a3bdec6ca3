#pragma once

#include <cstdint>

#include "parallel/comm/communicator.h"

namespace ottava {

/// How far this rank's steady clock is ahead of rank 0's.
struct ClockOffset {
  int64_t nanoseconds = 0;
  int64_t uncertainty_ns = 0;  ///< the truth is within so much on either side
};

/// All ranks call it; `control` moves host memory. In each of several rounds all ranks hear when the others
/// sent. A message is received after it was sent, which bounds the offset from both sides. Ranks of one
/// machine share a clock: 0.
ClockOffset measure_clock_offset(Communicator& control);

}  // namespace ottava
