#include "core/cost.h"

#include "core/sum_of.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace ottava {

std::string_view name_of(Precision precision) {
  static constexpr std::string_view kNames[] = {"fp32", "bf16", "fp8"};
  return kNames[static_cast<size_t>(precision)];
}

int64_t RecordedTransfer::sent_bytes() const { return sum_of(calls, &Call::sent_bytes); }

int64_t RecordedTransfer::payload_bytes() const { return sum_of(calls, &Call::payload_bytes); }

RecordedOperation& CostRecorder::add(const OpCost& cost, std::string operands) {
  const auto [total, is_new] = index_.try_emplace({label_, cost.op, cost.precision}, totals_.size());
  if (is_new) totals_.push_back({order_.labels[label_], std::string(cost.op), cost.precision});
  Total& sum = totals_[total->second];
  sum.calls += 1;
  sum.flops += cost.flops;
  sum.bytes += cost.bytes;
  // With the same operands, an operation that accumulates moves more bytes than one that overwrites.
  std::string key = operands;
  for (const double figure : {cost.flops, cost.bytes})
    key.append(reinterpret_cast<const char*>(&figure), sizeof figure);
  const auto [known, is_first] = operation_index_.try_emplace(
      {std::move(key), cost.op, cost.variant, cost.precision}, operations_.size());
  if (is_first) {
    operations_.push_back({.op = std::string(cost.op),
                           .variant = std::string(cost.variant),
                           .precision = cost.precision,
                           .operands = std::move(operands),
                           .flops = cost.flops,
                           .bytes = cost.bytes});
  }
  order_.events.push_back({RecordedEvent::Kind::operation, label_, static_cast<int32_t>(known->second)});
  RecordedOperation& operation = operations_[known->second];
  ++operation.calls;
  return operation;
}

int32_t CostRecorder::issue(RecordedTransfer transfer) {
  const auto index = static_cast<int32_t>(order_.transfers.size());
  order_.transfers.push_back(std::move(transfer));
  order_.events.push_back({RecordedEvent::Kind::issue, label_, index});
  return index;
}

void CostRecorder::wait(int32_t transfer) {
  order_.events.push_back({RecordedEvent::Kind::wait, label_, transfer});
}

int32_t CostRecorder::label_index(const std::string& label) {
  const auto [it, is_new] = label_index_.try_emplace(label, static_cast<int32_t>(order_.labels.size()));
  if (is_new) order_.labels.push_back(label);
  return it->second;
}

std::vector<CostRecorder::Total> CostRecorder::totals() const { return totals_; }

double CostRecorder::flops(Precision precision) const {
  return sum_of(totals_, [&](const Total& t) { return t.precision == precision ? t.flops : 0; });
}

double CostRecorder::bytes() const { return sum_of(totals_, &Total::bytes); }

void CostRecorder::need_workspace(int64_t bytes) { workspace_bytes_ = std::max(workspace_bytes_, bytes); }

CostRecorder::Scope::Scope(CostRecorder* recorder, std::string label) : recorder_(recorder) {
  if (!recorder_) return;
  previous_ = recorder_->label_;
  const std::string& outer = recorder_->order_.labels[previous_];
  recorder_->label_ = recorder_->label_index(outer.empty() ? label : outer + "." + label);
}

CostRecorder::Scope::~Scope() {
  if (recorder_) recorder_->label_ = previous_;
}

}  // namespace ottava
