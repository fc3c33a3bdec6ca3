#include "models/step_context.h"

namespace ottava {

void StepProfile::mark() {
  marks_.push_back({Event(stream_.device()), stack_.empty() ? std::string() : stack_.back()});
  marks_.back().at.record(stream_);
}

void StepProfile::enter(std::string_view label) {
  mark();
  stack_.emplace_back(label);
}

void StepProfile::leave() {
  mark();
  stack_.pop_back();
}

const std::map<std::string, double, std::less<>>& StepProfile::seconds() {
  stream_.synchronize();
  for (size_t i = 1; i < marks_.size(); ++i) {
    if (marks_[i].label.empty()) continue;
    seconds_[marks_[i].label] += marks_[i].at.milliseconds_since(marks_[i - 1].at) / 1e3;
  }
  marks_.clear();
  return seconds_;
}

StepContext::Scope::Scope(const StepContext& context, std::string_view label)
    : cost_(context.stream.type() == DeviceType::meta ? &context.stream.recorder() : nullptr,
            std::string(label)),
      profile_(context.profile) {
  if (profile_) profile_->enter(label);
}

StepContext::Scope::~Scope() {
  if (profile_) profile_->leave();
}

}  // namespace ottava
