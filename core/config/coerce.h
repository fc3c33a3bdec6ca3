#pragma once

#include <optional>

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava::config {

/// `value` as the field's type, checked against its range and choices; null stands for itself. Adds a problem
/// at the value (or at the list's element) and returns nothing when it does not fit. Integers serve as
/// numbers, numbers never as integers, and texts never as numbers, unless the value is from the command line.
/// Lists of tables keep their tables unread.
std::optional<Value> coerce(const Field& field, const Value& value, Problems& problems);

/// "a number > 0 and <= 1", for messages and help.
std::string expectation(const Field& field);

}  // namespace ottava::config
