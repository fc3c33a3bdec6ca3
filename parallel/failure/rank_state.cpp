#include "parallel/failure/rank_state.h"

#include <algorithm>

#include <fmt/core.h>

#include "core/listed.h"

namespace ottava {
namespace {

using State = ProgressRecord::State;

// "rank 2", "ranks 0, 1, 3"; long lists end in a count.
std::string list_of(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  return (ranks.size() == 1 ? "rank " : "ranks ") +
         listed(
             ranks, [](int r) { return std::to_string(r); }, kShown);
}

// Ranks whose records pass, grouped by what they are doing, in rank order: "rank 2 is in ...; ranks 0, 3 are
// after ...".
template <class Keep>
std::string describe_groups(const std::vector<ProgressRecord>& records, Keep keep) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const ProgressRecord& record : records) {
    if (!keep(record)) continue;
    std::string what = describe(record);
    auto found = std::ranges::find(groups, what, [](const auto& group) { return group.first; });
    if (found == groups.end()) {
      groups.push_back({what, {record.rank}});
    } else {
      found->second.push_back(record.rank);
    }
  }
  std::string text;
  for (const auto& [what, ranks] : groups) {
    add_item(text, fmt::format("{} {} {}", list_of(ranks), ranks.size() == 1 ? "is" : "are", what), "; ");
  }
  return text;
}

bool is_gone(const ProgressRecord& r) {
  return r.state == State::closed || r.state == State::failed || r.state == State::silent;
}

}  // namespace

std::string describe(const ProgressRecord& record) {
  std::string_view absence;
  if (record.state == State::closed) absence = "gone, last seen ";
  if (record.state == State::failed) absence = "stopped by an error, last seen ";
  if (record.state == State::silent) absence = "not answering, last seen ";
  if (record.sequence == 0) return fmt::format("{}before its first call", absence);
  bool inside = absence.empty() ? record.state == State::inside : record.was_inside;
  return fmt::format("{}{} {} '{}' (axis {}, call {}, step {}{}{})", absence, inside ? "in" : "after",
                     name_of(record.collective), record.label, record.axis, record.sequence, record.step,
                     record.work.empty() ? "" : ", ", record.work);
}

std::string call_text(const ProgressRecord& at) {
  return fmt::format("{} '{}' (axis {}, step {})", name_of(at.collective), at.label, at.axis, at.step);
}

std::string blame(const std::vector<ProgressRecord>& records) {
  if (records.empty()) return "no rank has reported";
  if (std::ranges::any_of(records, is_gone)) {
    std::string gone = describe_groups(records, is_gone);
    std::string others = describe_groups(records, [](const ProgressRecord& r) { return !is_gone(r); });
    return others.empty() ? gone : fmt::format("{}; {}", gone, others);
  }
  auto [low, high] = std::ranges::minmax(records, {}, &ProgressRecord::sequence);
  if (low.sequence < high.sequence) {
    int64_t lowest = low.sequence;
    return fmt::format("behind: {}; waiting: {}",
                       describe_groups(records, [&](const auto& r) { return r.sequence == lowest; }),
                       describe_groups(records, [&](const auto& r) { return r.sequence != lowest; }));
  }
  auto differs = [&](const ProgressRecord& r) {
    return r.collective != records[0].collective || r.label != records[0].label ||
           r.axis != records[0].axis || r.elements != records[0].elements;
  };
  std::string all = describe_groups(records, [](const ProgressRecord&) { return true; });
  if (std::ranges::any_of(records, differs)) {
    std::vector<ProgressRecord> sized = records;
    for (ProgressRecord& r : sized) r.label += fmt::format(" of {} elements", r.elements);
    return fmt::format("the ranks disagree about the call: {}",
                       describe_groups(sized, [](const auto&) { return true; }));
  }
  return fmt::format("no rank is behind, so the connection is at fault: {}", all);
}

void RankState::set_step(int64_t step) {
  std::lock_guard lock(mutex_);
  record_.step = step;
}

int64_t RankState::step() const {
  std::lock_guard lock(mutex_);
  return record_.step;
}

void RankState::set_work(std::string work) {
  std::lock_guard lock(mutex_);
  work_ = std::move(work);
}

std::string RankState::work() const {
  std::lock_guard lock(mutex_);
  return work_;
}

void RankState::enter(Collective collective, std::string_view axis, std::string_view label, int64_t calls,
                      int64_t elements, std::string_view work) {
  std::lock_guard lock(mutex_);
  record_.state = State::inside;
  record_.was_inside = true;
  record_.collective = collective;
  record_.sequence += calls;
  record_.elements = elements;
  record_.axis = axis;
  record_.label = label;
  record_.work = work;
}

void RankState::leave() {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  record_.state = State::done;
  record_.was_inside = false;
}

ProgressRecord RankState::progress() const {
  std::lock_guard lock(mutex_);
  return record_;
}

void RankState::fail(const std::string& reason) {
  std::vector<std::function<void(const std::string&)>> hooks;
  {
    std::lock_guard lock(mutex_);
    if (failed_) return;
    failure_ = reason;
    record_.state = State::failed;
    failed_ = true;
    hooks = hooks_;
  }
  for (auto& hook : hooks) hook(reason);
}

std::string RankState::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void RankState::on_failure(std::function<void(const std::string&)> hook) {
  std::lock_guard lock(mutex_);
  hooks_.push_back(std::move(hook));
}

void RankState::set_explanation(std::function<std::string()> explain) {
  std::lock_guard lock(mutex_);
  explain_ = std::move(explain);
}

std::string RankState::explain() const {
  std::function<std::string()> explain;
  {
    std::lock_guard lock(mutex_);
    explain = explain_;
  }
  return explain ? explain() : "which rank is missing is not known, because this rank has no ledger";
}

std::string RankState::timeout_message() const {
  return fmt::format("[comm] rank {}: {} made no progress for {} s: {}", rank_, call_text(progress()),
                     timeout_seconds(), explain());
}

}  // namespace ottava
