#include "core/config/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/contains.h"
#include "core/text/number.h"

namespace ottava::config {
namespace {

std::optional<int64_t> parse_integer(std::string_view text) {
  const bool is_based = text.starts_with("0x") || text.starts_with("0o");
  const int base = !is_based ? 10 : text[1] == 'x' ? 16 : 8;
  const bool is_negative = text.starts_with('-');
  text.remove_prefix(is_based ? 2 : is_negative || text.starts_with('+') ? 1 : 0);
  if (text.empty() || text[0] == '-' || text[0] == '+') return std::nullopt;
  return parse_number<int64_t>((is_negative ? "-" : "") + std::string(text), base);
}

std::optional<double> parse_real(std::string_view text) {
  const double sign = text.starts_with('-') ? -1 : 1;
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  if (text == ".inf" || text == ".Inf" || text == ".INF") return sign * INFINITY;
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return NAN;
  // from_chars also accepts signs, and "inf" and "nan", which are words here.
  if (text.empty() || !(text[0] == '.' || (text[0] >= '0' && text[0] <= '9'))) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size()) return std::nullopt;
  // from_chars does not say on which side of the range a number is.
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(text).c_str(), nullptr);
  return sign * value;
}

Value untagged(std::string_view text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return {};
  if (text == "true" || text == "True" || text == "TRUE") return Value::of(true);
  if (text == "false" || text == "False" || text == "FALSE") return Value::of(false);
  if (const auto integer = parse_integer(text)) return Value::of(*integer);
  if (const auto real = parse_real(text)) return Value::of(*real);
  return Value::of(std::string(text));
}

}  // namespace

std::string to_string(const Location& location) {
  if (!location.known()) return "default";
  if (location.line == 0) return *location.source;
  return fmt::format("{}:{}:{}", *location.source, location.line, location.column);
}

const Value* Value::find(std::string_view key) const {
  const Member* member = find_by(members, key, &Member::key);
  return member ? &member->value : nullptr;
}

Value Value::of(bool value, Location at) {
  return {.kind = Kind::boolean, .boolean = value, .text = value ? "true" : "false", .at = std::move(at)};
}
Value Value::of(int64_t value, Location at) {
  return {.kind = Kind::integer,
          .integer = value,
          .real = static_cast<double>(value),
          .text = std::to_string(value),
          .at = std::move(at)};
}
Value Value::of(double value, Location at) {
  return {.kind = Kind::real, .real = value, .text = to_text(value), .at = std::move(at)};
}
Value Value::of(std::string value, Location at) {
  return {.kind = Kind::text, .text = std::move(value), .at = std::move(at)};
}
Value Value::list_of(const std::vector<std::string>& values) {
  Value v{.kind = Kind::list};
  for (const std::string& value : values) v.items.push_back(of(value));
  return v;
}

bool same(const Value& a, const Value& b) {
  using enum Value::Kind;
  const auto same_member = [](const Member& x, const Member& y) {
    return x.key == y.key && same(x.value, y.value);
  };
  if (a.kind != b.kind || !std::ranges::equal(a.items, b.items, same) ||
      !std::ranges::equal(a.members, b.members, same_member))
    return false;
  switch (a.kind) {
    case boolean:
      return a.boolean == b.boolean;
    case integer:
      return a.integer == b.integer;
    case real:
      return a.real == b.real;
    case text:
      return a.text == b.text;
    default:
      return true;
  }
}

std::string describe(const Value& value) {
  using enum Value::Kind;
  constexpr size_t kShown = 60;  // a hostile value must not flood the terminal
  std::string shown = value.text.size() > kShown ? value.text.substr(0, kShown) + "..." : value.text;
  switch (value.kind) {
    case null:
      return "nothing (null)";
    case boolean:
      return "the boolean " + shown;
    case integer:
      return "the integer " + shown;
    case real:
      return "the number " + shown;
    case text:
      return fmt::format("the string \"{}\"", shown);
    case list:
      return "a list";
    default:
      return "a table of keys";
  }
}

Value plain_scalar(std::string_view text, Location at) {
  Value v = untagged(text);
  v.text = text;
  v.at = std::move(at);
  return v;
}

std::string to_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = fmt::format("{}", value);
  // YAML 1.1 readers take 1e-08 for text: write 1.0e-08.
  if (!contains(text, '.')) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

}  // namespace ottava::config
