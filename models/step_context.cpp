#include "models/step_context.h"

namespace ottava {

void StepProfile::enter(std::string_view label) {
  Clock::time_point now = Clock::now();
  if (!stack_.empty()) seconds_[stack_.back()] += std::chrono::duration<double>(now - last_).count();
  stack_.emplace_back(label);
  last_ = now;
}

void StepProfile::leave() {
  Clock::time_point now = Clock::now();
  seconds_[stack_.back()] += std::chrono::duration<double>(now - last_).count();
  stack_.pop_back();
  last_ = now;
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
