#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ottava {

/// Axes whose calls compute waits for soon have a lane of their own, so that they do not queue behind what is
/// sent ahead; all others share the first. A call that reads what one of another lane leaves comes after a
/// wait for that.
inline constexpr std::array<std::string_view, 3> kLanes{"tp", "cp", "pp"};
constexpr size_t lane_of(std::string_view axis) {
  for (size_t i = 0; i < kLanes.size(); ++i)
    if (kLanes[i] == axis) return i + 1;
  return 0;
}
inline constexpr size_t kLaneCount = kLanes.size() + 1;

}  // namespace ottava
