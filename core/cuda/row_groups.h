#pragma once

#include <cstdint>
#include <string_view>

#include "core/stream.h"

namespace ottava::cuda {

/// Groups of rows whose sums are made apart, by one block each, and then added in order: two blocks for each
/// of an H100's 132 processors, and a constant, so that sums do not depend on the device.
inline constexpr int64_t kRowGroups = 264;

/// What row groups have left in partials [groups, stride]; the columns [first, first + cols) are added up.
struct RowGroupSums {
  const float* partials;
  int64_t groups, stride, first, cols;
};
/// out[c] += the sum over the groups, in a fixed order.
void add_row_groups(std::string_view op, Stream& stream, const RowGroupSums& sums, float* out);

}  // namespace ottava::cuda
