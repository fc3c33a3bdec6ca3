#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ottava {

/// Axes for whose calls compute soon waits have lanes of their own, so that these calls do not queue behind
/// what is sent ahead of time; all other axes share lane 0. Before a call that reads the result of a call in
/// another lane, the caller must wait for that result.
inline constexpr std::array<std::string_view, 3> kLanes{"tp", "cp", "pp"};
constexpr size_t lane_of(std::string_view axis) {
  for (size_t i = 0; i < kLanes.size(); ++i)
    if (kLanes[i] == axis) return i + 1;
  return 0;
}
inline constexpr size_t kLaneCount = kLanes.size() + 1;

}  // namespace ottava
