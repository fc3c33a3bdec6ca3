#include "core/config/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/contains.h"
#include "core/number.h"

namespace ottava::config {
namespace {

bool parse_integer(std::string_view text, int64_t& out) {
  int base = 10;
  bool negative = false;
  if (text.starts_with("0x") || text.starts_with("0o")) {
    base = text[1] == 'x' ? 16 : 8;
    text.remove_prefix(2);
  } else if (text.starts_with('+') || text.starts_with('-')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.empty() || text[0] == '-' || text[0] == '+') return false;
  const auto value = parse_number<int64_t>((negative ? "-" : "") + std::string(text), base);
  out = value.value_or(0);
  return value.has_value();
}

bool parse_real(std::string_view text, double& out) {
  std::string_view body = text;
  if (body.starts_with('+') || body.starts_with('-')) body.remove_prefix(1);
  if (body == ".inf" || body == ".Inf" || body == ".INF") {
    out = text[0] == '-' ? -INFINITY : INFINITY;
    return true;
  }
  if (body == ".nan" || body == ".NaN" || body == ".NAN") {
    out = NAN;
    return true;
  }
  // from_chars also knows "inf" and "nan", which are words here.
  if (body.empty() || !(body[0] == '.' || (body[0] >= '0' && body[0] <= '9'))) return false;
  if (text[0] == '+') text.remove_prefix(1);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc::result_out_of_range) out = text[0] == '-' ? -INFINITY : INFINITY;
  return error != std::errc::invalid_argument && end == text.data() + text.size();
}

}  // namespace

std::string to_string(const Location& location) {
  if (!location.known()) return "default";
  if (location.line == 0) return *location.source;
  return fmt::format("{}:{}:{}", *location.source, location.line, location.column);
}

const Value* Value::find(std::string_view key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

Value Value::of(bool value) {
  return {.kind = Kind::boolean, .boolean = value, .text = value ? "true" : "false"};
}

Value Value::of(int64_t value) {
  return {.kind = Kind::integer,
          .integer = value,
          .real = static_cast<double>(value),
          .text = std::to_string(value)};
}

Value Value::of(double value) { return {.kind = Kind::real, .real = value, .text = to_text(value)}; }

Value Value::of(std::string value) { return {.kind = Kind::text, .text = std::move(value)}; }

Value Value::list_of(const std::vector<std::string>& values) {
  Value v{.kind = Kind::list};
  for (const std::string& value : values) v.items.push_back(of(value));
  return v;
}

bool same(const Value& a, const Value& b) {
  const auto same_member = [](const Member& x, const Member& y) {
    return x.key == y.key && same(x.value, y.value);
  };
  if (a.kind != b.kind || !std::ranges::equal(a.items, b.items, same) ||
      !std::ranges::equal(a.members, b.members, same_member))
    return false;
  switch (a.kind) {
    case Value::Kind::boolean:
      return a.boolean == b.boolean;
    case Value::Kind::integer:
      return a.integer == b.integer;
    case Value::Kind::real:
      return a.real == b.real;
    case Value::Kind::text:
      return a.text == b.text;
    default:
      return true;
  }
}

std::string describe(const Value& value) {
  constexpr size_t kShown = 60;  // a hostile value must not flood the terminal
  std::string shown = value.text.size() > kShown ? value.text.substr(0, kShown) + "..." : value.text;
  switch (value.kind) {
    case Value::Kind::null:
      return "nothing (null)";
    case Value::Kind::boolean:
      return "the boolean " + shown;
    case Value::Kind::integer:
      return "the integer " + shown;
    case Value::Kind::real:
      return "the number " + shown;
    case Value::Kind::text:
      return fmt::format("the text \"{}\"", shown);
    case Value::Kind::list:
      return "a list";
    default:
      return "a table of keys";
  }
}

Value plain_scalar(std::string_view text, Location at) {
  Value v;
  int64_t integer = 0;
  double real = 0;
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    v = Value{};
  } else if (text == "true" || text == "True" || text == "TRUE") {
    v = Value::of(true);
  } else if (text == "false" || text == "False" || text == "FALSE") {
    v = Value::of(false);
  } else if (parse_integer(text, integer)) {
    v = Value::of(integer);
  } else if (parse_real(text, real)) {
    v = Value::of(real);
  } else {
    v = Value::of(std::string(text));
  }
  v.text = std::string(text);
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
