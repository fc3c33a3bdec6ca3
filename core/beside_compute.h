#pragma once

#include <string_view>
#include <vector>

#include "core/cost.h"

namespace ottava {

/// By transfer: true if operations are asked for between it and the first wait for it, so that it may run
/// beside them. A transfer that is never waited for is not.
std::vector<bool> beside_compute(const RecordedOrder& order);
/// Bytes of an axis that are sent beside operations.
int64_t sent_beside_compute(const RecordedOrder& order, std::string_view axis);

}  // namespace ottava
