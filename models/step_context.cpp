#include "models/step_context.h"

#include <string>

namespace ottava {

StepContext::Scope::Scope(const StepContext& context, std::string_view label)
    : cost_(context.stream.is_meta() ? &context.stream.recorder() : nullptr, std::string(label)),
      profile_(context.profile, label) {}

StepContext::Scope::~Scope() = default;

}  // namespace ottava
