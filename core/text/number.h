#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace ottava {

/// The whole text as a number, as std::from_chars reads it (an integer in `base` if one is given). Nothing if
/// the text is not a number or T cannot hold it.
template <class T, class... Base>
std::optional<T> parse_number(std::string_view text, Base... base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace ottava
