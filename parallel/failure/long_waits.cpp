#include "parallel/failure/long_waits.h"

#include <algorithm>

#include <fmt/core.h>

namespace ottava {

std::string LongWaits::look(const std::vector<ProgressRecord>& records, Clock::time_point now) {
  since_.resize(records.size());
  std::vector<double> waited(records.size());
  for (size_t r = 0; r < records.size(); ++r) {
    const bool is_inside = records[r].state == ProgressRecord::State::inside;
    const int64_t call = is_inside ? records[r].call.sequence : 0;
    if (call != since_[r].call) since_[r] = {call, now};
    if (is_inside) waited[r] = std::chrono::duration<double>(now - since_[r].when).count();
  }
  double longest = std::ranges::max(waited);
  if (longest < seconds_) next_seconds_ = seconds_;
  if (longest < next_seconds_) return {};
  const Waiting waiting = who_waits(records);
  longest = 0;
  for (int rank : waiting.ranks) longest = std::max(longest, waited[rank]);
  if (longest < next_seconds_) return {};
  while (next_seconds_ <= longest) next_seconds_ *= 2;
  return fmt::format("ranks have waited for others for {:.0f} s; {}", longest, waiting.text);
}

}  // namespace ottava
