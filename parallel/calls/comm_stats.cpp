#include "parallel/calls/comm_stats.h"

#include "core/sum_of.h"

#include <array>

#include <fmt/core.h>

namespace ottava {

std::string_view name_of(Collective collective) {
  constexpr std::array<std::string_view, 8> kNames = {
      "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send", "recv", "barrier", "CUDA graph"};
  return kNames[static_cast<size_t>(collective)];
}

void CommStats::record(const Entry& entry) {
  std::string key = fmt::format("{}\n{}\n{}", static_cast<int>(entry.collective), entry.axis, entry.label);
  auto found = index_.find(key);
  if (found == index_.end()) {
    found = index_.emplace(std::move(key), totals_.size()).first;
    totals_.push_back({entry.collective, std::string(entry.axis), std::string(entry.label)});
  }
  Total& total = totals_[found->second];
  ++total.calls;
  total.payload_bytes += entry.payload_bytes;
  total.sent_bytes += entry.sent_bytes;
}

std::vector<CommStats::Total> CommStats::totals() const { return totals_; }

CommStats::Total CommStats::sum(Collective collective, std::string_view axis) const {
  Total sum{collective, std::string(axis), ""};
  for (const Total& total : totals_) {
    if (total.collective != collective || (!axis.empty() && total.axis != axis)) continue;
    sum.calls += total.calls;
    sum.payload_bytes += total.payload_bytes;
    sum.sent_bytes += total.sent_bytes;
  }
  return sum;
}

int64_t CommStats::sent_bytes() const { return sum_of(totals_, &Total::sent_bytes); }

int64_t CommStats::calls() const { return sum_of(totals_, &Total::calls); }

void CommStats::reset() {
  totals_.clear();
  index_.clear();
}

}  // namespace ottava
