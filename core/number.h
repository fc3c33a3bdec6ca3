#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace ottava {

/// The number that the whole text is, as std::from_chars reads it, of integers in `base` where one is given;
/// nothing where it is none, or none that T holds.
template <class T, class... Base>
std::optional<T> parse_number(std::string_view text, Base... base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace ottava
