#pragma once

#include <cstdint>
#include <string_view>

#include "core/stream.h"

namespace ottava::cuda {

/// Number of groups of rows whose sums are made separately, by one block each, and then added in order. Two
/// blocks for each of an H100's 132 SMs; it is constant so that sums do not depend on the device.
inline constexpr int64_t kRowGroups = 264;

/// Sums that row groups have left in partials [groups, stride]. Columns [first, first + cols) are added up.
struct RowGroupSums {
  const float* partials;
  int64_t groups, stride, first, cols;
};
/// out[c] += the sum over the groups, in a fixed order.
void add_row_groups(std::string_view op, Stream& stream, const RowGroupSums& sums, float* out);

}  // namespace ottava::cuda
