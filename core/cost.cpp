#include "core/cost.h"

#include <algorithm>

namespace ottava {

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::bf16:
      return "bf16";
    default:
      return "fp8";
  }
}

void CostRecorder::record(const OpCost& cost) {
  std::string key = label_ + '\0' + std::string(cost.op) + '\0' + std::string(name_of(cost.precision));
  auto [it, is_new] = index_.try_emplace(key, totals_.size());
  if (is_new) totals_.push_back({label_, std::string(cost.op), cost.precision});
  Total& total = totals_[it->second];
  total.calls += 1;
  total.flops += cost.flops;
  total.bytes += cost.bytes;
}

RecordedOperation& CostRecorder::operation_of(const OpCost& cost, std::string operands) {
  std::string key;
  for (std::string_view part : {cost.op, cost.variant, name_of(cost.precision), std::string_view(operands)})
    key.append(part).push_back('\0');
  auto [it, is_new] = operation_index_.try_emplace(std::move(key), operations_.size());
  if (is_new) {
    operations_.push_back({.op = std::string(cost.op),
                           .variant = std::string(cost.variant),
                           .precision = cost.precision,
                           .operands = std::move(operands),
                           .flops = cost.flops,
                           .bytes = cost.bytes,
                           .call = {}});
  }
  return operations_[it->second];
}

std::vector<CostRecorder::Total> CostRecorder::totals() const { return totals_; }

double CostRecorder::flops(Precision precision) const {
  double sum = 0;
  for (const Total& total : totals_) sum += total.precision == precision ? total.flops : 0;
  return sum;
}

double CostRecorder::bytes() const {
  double sum = 0;
  for (const Total& total : totals_) sum += total.bytes;
  return sum;
}

void CostRecorder::need_workspace(int64_t bytes) { workspace_bytes_ = std::max(workspace_bytes_, bytes); }

void CostRecorder::clear() {
  totals_.clear();
  operations_.clear();
  index_.clear();
  operation_index_.clear();
  workspace_bytes_ = 0;
}

CostRecorder::Scope::Scope(CostRecorder* recorder, std::string label) : recorder_(recorder) {
  if (!recorder_) return;
  previous_ = recorder_->label_;
  recorder_->label_ = previous_.empty() ? std::move(label) : previous_ + "." + label;
}

CostRecorder::Scope::~Scope() {
  if (recorder_) recorder_->label_ = previous_;
}

}  // namespace ottava
