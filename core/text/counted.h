#pragma once

#include <fmt/core.h>

#include <concepts>
#include <string>
#include <string_view>

namespace ottava {

/// "1 rank", "2 ranks", for messages. Give `plural` where it is not the noun with an s.
std::string counted(std::integral auto count, std::string_view noun, std::string_view plural = {}) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

}  // namespace ottava
