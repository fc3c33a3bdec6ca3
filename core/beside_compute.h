#pragma once

#include <string_view>
#include <vector>

#include "core/cost.h"

namespace ottava {

/// One value per transfer of `order`: true if operations are asked for between it and the first wait for it,
/// so that it may run beside them; false for a transfer that is never waited for.
std::vector<bool> beside_compute(const RecordedOrder& order);
/// Bytes that transfers of this axis send beside operations.
int64_t sent_beside_compute(const RecordedOrder& order, std::string_view axis);

}  // namespace ottava
