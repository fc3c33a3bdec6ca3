#include "parallel/calls/rank_state.h"

#include <algorithm>

#include <fmt/core.h>

namespace ottava {

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

uint32_t RankState::add_group(std::string_view axis, const std::vector<int>& world_ranks) {
  uint32_t hash = 2166136261u;
  const auto mix = [&](uint32_t value) { hash = (hash ^ value) * 16777619u; };
  for (char c : axis) mix(static_cast<unsigned char>(c));
  for (int rank : world_ranks) mix(static_cast<uint32_t>(rank));
  std::lock_guard lock(mutex_);
  mix(static_cast<uint32_t>(groups_[hash]++));
  return hash;
}

int64_t RankState::enter(EnteredCall call, Clock::time_point since) {
  std::lock_guard lock(mutex_);
  sequence_ += std::max<int64_t>(call.calls, 1);  // a graph may have none
  call.sequence = sequence_;
  if (call.collectives > 0) call.place = record_.collectives[call.group] += call.collectives;
  auto later = std::ranges::find_if(under_way_, [&](const UnderWay& other) { return other.since > since; });
  under_way_.insert(later, {since, std::move(call)});
  return sequence_;
}

// With the lock held.
EnteredCall RankState::take(int64_t sequence) {
  auto found = std::ranges::find(under_way_, sequence, [](const UnderWay& u) { return u.call.sequence; });
  EnteredCall call = std::move(found->call);
  under_way_.erase(found);
  return call;
}

void RankState::leave(int64_t sequence) {
  std::lock_guard lock(mutex_);
  if (!failed_) record_.call = take(sequence);
}

void RankState::withdraw(int64_t sequence) {
  std::lock_guard lock(mutex_);
  const EnteredCall call = take(sequence);
  if (call.collectives > 0) record_.collectives[call.group] -= call.collectives;
}

ProgressRecord RankState::progress() const {
  std::lock_guard lock(mutex_);
  ProgressRecord record = record_;
  record.was_inside = !under_way_.empty();
  if (record.was_inside) record.call = under_way_.front().call;
  using State = ProgressRecord::State;
  if (record.call.sequence > 0) record.state = record.was_inside ? State::inside : State::done;
  if (failed_) record.state = State::failed;
  return record;
}

ProgressRecord RankState::progress_with_messages() const {
  constexpr double kAwaitedSeconds = 1;
  ProgressRecord record = progress();
  record.messages = messages_.counts(std::min(kAwaitedSeconds, timeout_seconds() / 2));
  return record;
}

void RankState::fail(const std::string& reason) {
  std::vector<std::function<void(const std::string&)>> hooks;
  {
    std::lock_guard lock(mutex_);
    if (failed_) return;
    failure_ = reason;
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
