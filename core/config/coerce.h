#pragma once

#include <optional>

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava::config {

/// `value` as the field's type, checked against its range and choices; null stays null. If it does not fit,
/// adds a problem at the value (or at the list's element) and returns nothing. Integers serve as numbers, but
/// numbers never as integers and texts never as numbers, unless the value is from the command line. The
/// tables of a list of tables are not read here.
std::optional<Value> coerce(const Field& field, const Value& value, Problems& problems);

/// "a number > 0 and <= 1", for messages and configs/keys.md.
std::string expectation(const Field& field);

}  // namespace ottava::config
