#include "apps/commands/given_number.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/text/number.h"

namespace ottava {
namespace {

/// A natural number that 64 bits cannot hold is the largest that they can.
std::optional<uint64_t> natural_number_of(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return parse_number<uint64_t>(text).value_or(std::numeric_limits<uint64_t>::max());
}

std::optional<double> number_of(const std::string& text) {
  const std::optional<double> number = parse_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<double> whole_number_of(const std::string& text) {
  if (const auto natural = natural_number_of(text)) return static_cast<double>(*natural);
  const auto number = parse_number<int64_t>(text);
  return number ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

}  // namespace

std::string GivenNumber::expected() const {
  if (most) return fmt::format("{} to {}", least.value_or(0), *most);
  if (least) return fmt::format("at least {}", *least);
  return largest_whole ? "a whole number" : "a number";
}

// Whole numbers near 2^63 are not told apart in float64, so the largest is compared as what it is.
std::string GivenNumber::refusal(const std::string& text) const {
  const std::string got = text.empty() ? "nothing" : text.substr(0, 64);
  const std::optional<double> value = largest_whole ? whole_number_of(text) : number_of(text);
  if (!value || *value < least.value_or(*value)) return fmt::format("expected {}, got {}", expected(), got);
  const bool exceeds_most = *value > most.value_or(*value);
  if (largest_whole && *value > 0) {
    const std::optional<uint64_t> exact = parse_number<uint64_t>(text);
    if ((!exact || *exact > *largest_whole) && static_cast<double>(*largest_whole) <= most.value_or(HUGE_VAL))
      return fmt::format("expected {} to {}, got {}", least.value_or(0), *largest_whole, got);
  }
  return exceeds_most ? fmt::format("expected {}, got {}", expected(), got) : "";
}

std::string GivenNumber::plain(const std::string& text) const {
  if (!largest_whole) return text;
  const size_t sign = text.starts_with('-');
  const size_t digits = std::min(text.find_first_not_of('0', sign), text.size() - 1);
  return text.substr(0, sign) + text.substr(digits);
}

}  // namespace ottava
