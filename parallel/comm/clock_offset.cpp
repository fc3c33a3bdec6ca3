#include "parallel/comm/clock_offset.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/trace/step_profile.h"

namespace ottava {

ClockOffset measure_clock_offset(Communicator& control) {
  if (control.size() == 1) return {};
  constexpr int kRounds = 9;  // of which the first only sets up connections
  Stream host = Stream::cpu();
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  int64_t mine[2] = {0, 0};  // when this round was sent, when the one before was heard
  int64_t sent_before = 0;
  std::vector<int64_t> all(2 * control.size());
  for (int round = 0; round < kRounds; ++round) {
    mine[0] = steady_nanoseconds();
    control
        .all_gather(
            host,
            {.send = view_of(mine, {2}), .recv = view_of(all.data(), {std::ssize(all)}), .label = "clocks"})
        .wait(host);
    const int64_t heard = steady_nanoseconds();
    if (round > 0) most = std::min(most, heard - all[0]);
    // Rank 0 heard what this rank had sent in the round before.
    if (round > 1) least = std::max(least, sent_before - all[1]);
    sent_before = mine[0];
    mine[1] = heard;
  }
  if (least <= 0 && most >= 0) return {};
  return {least + (most - least) / 2, (most - least + 1) / 2};
}

}  // namespace ottava
