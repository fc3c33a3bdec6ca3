#include "core/config/coerce.h"

#include <fmt/core.h>

#include <cmath>

#include "core/config/nearest.h"
#include "core/config/print.h"
#include "core/config/source.h"
#include "core/contains.h"
#include "core/error.h"
#include "core/text/lower_case.h"
#include "core/text/split.h"

namespace ottava::config {
namespace {

using Kind = Value::Kind;

std::string bound_text(const Field& field, double bound) {
  return field.type == Type::integer ? fmt::format("{}", static_cast<int64_t>(bound))
                                     : fmt::format("{}", bound);
}

bool in_range(const Field& field, double x) {
  bool low = field.least_open ? x > field.least : x >= field.least;
  return (low && x <= field.most) || field.beside_range == x;
}

/// Whether a number is written as an integer, but too large for one.
bool is_long_integer(const Value& v) {
  return v.kind == Kind::real && v.text.find_first_not_of("+-0123456789") == std::string::npos;
}

bool is_one_word(Type type) { return type == Type::boolean || type == Type::integer || type == Type::real; }

/// With everything inside of it, which the command line's own lines and columns would place in no file.
void place_at(Value& value, const Location& at) {
  value.at = at;
  for (Value& item : value.items) place_at(item, at);
  for (Member& member : value.members) member.at = at, place_at(member.value, at);
}

/// Text of the command line as the kind of value that the field takes.
Value typed(const Field& field, const Value& value) {
  std::string_view text = value.text;
  if (text == "null") return plain_scalar(text, value.at);
  switch (field.type) {
    case Type::text:
      return Value::of(std::string(text), value.at);
    case Type::text_list:
    case Type::table_list: {
      if (text.starts_with('[')) {
        Value v = parse_yaml_value(text, "");
        place_at(v, value.at);
        for (Value& item : v.items)
          if (field.type == Type::text_list && item.is_scalar()) item.kind = Kind::text;
        return v;
      }
      Value v{.kind = Kind::list, .at = value.at};
      if (text.empty()) return v;
      if (text.ends_with(',')) text.remove_suffix(1);
      for (std::string_view item : split_text(text, ','))
        v.items.push_back(Value::of(std::string(item), value.at));
      return v;
    }
    default:
      return plain_scalar(text, value.at);
  }
}

class Coercion {
 public:
  Coercion(const Field& field, Problems& problems) : field_(field), problems_(problems) {}

  std::optional<Value> operator()(Value v) {
    if (v.kind == Kind::null) return v;
    switch (field_.type) {
      case Type::boolean:
        return v.kind == Kind::boolean ? std::optional(v) : wrong(v);
      case Type::integer:
        return v.kind == Kind::integer && in_range(field_, v.real)
                   ? std::optional(v)
                   : wrong(v, is_long_integer(v) ? ", which 64 bits cannot hold" : "");
      case Type::real:
        return number(std::move(v));
      case Type::text:
        return text(std::move(v));
      case Type::text_list:
        return list(std::move(v));
      default:
        return v.kind == Kind::list ? std::optional(v) : wrong(v);
    }
  }

 private:
  std::nullopt_t wrong(const Value& v, std::string_view hint = "") {
    problems_.add(v.at, "{}: expected {}, got {}{}", field_.path, expectation(field_), describe(v), hint);
    return std::nullopt;
  }

  std::optional<Value> number(Value v) {
    if (v.kind != Kind::integer && v.kind != Kind::real) return wrong(v);
    if (!std::isfinite(v.real)) return wrong(v, ", which is not a finite float64");
    if (!in_range(field_, v.real)) return wrong(v);
    v.kind = Kind::real;
    return v;
  }

  std::optional<Value> text(Value v) {
    if (!v.is_scalar()) return wrong(v);
    if (v.kind != Kind::text && !field_.accepts_scalar) return wrong(v, "; write it in quotes");
    v.kind = Kind::text;
    return choose(std::move(v));
  }

  std::optional<Value> list(Value v) {
    Value list = v;
    if (v.is_scalar()) {
      list = {.kind = Kind::list, .items = {v}, .at = v.at};
    }
    if (list.kind != Kind::list) return wrong(v);
    bool good = true;
    for (Value& item : list.items) {
      const bool fits = item.kind == Kind::text || (field_.accepts_scalar && item.is_scalar());
      auto checked = fits ? text(item) : wrong(item);
      good = good && checked;
      if (checked) item = std::move(*checked);
    }
    return good ? std::optional(std::move(list)) : std::nullopt;
  }

  /// Old names become new ones; names that are refused are left for the check of fates.
  std::optional<Value> choose(Value v) {
    if (field_.choices.empty()) return v;
    std::vector<std::string> known = field_.choices;
    for (const auto& [old, value] : field_.renamed_values) known.push_back(old);
    for (const auto& [value, why] : field_.refused_values) known.push_back(value);
    if (contains(known, v.text)) return v;
    if (field_.type == Type::text_list && contains(v.text, ','))
      return wrong(v, "; write a list: " + to_quoted_list(parts_between_commas(v.text)));
    std::string near = nearest(v.text, field_.choices);
    for (const auto& [word, value] : field_.suggested_values)
      if (in_lower_case(v.text) == word) near = value;
    return wrong(v, near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }

  const Field& field_;
  Problems& problems_;
};

}  // namespace

std::string expectation(const Field& field) {
  if (!field.choices.empty()) {
    return (field.type == Type::text_list ? "a list of " : "") + one_of_text(field.choices);
  }
  std::string text(name_of(field.type));
  if (field.beside_range) text = fmt::format("{} or {}", bound_text(field, *field.beside_range), text);
  bool low = std::isfinite(field.least), high = std::isfinite(field.most);
  if (low) text += fmt::format(" {} {}", field.least_open ? ">" : ">=", bound_text(field, field.least));
  if (high) text += fmt::format("{} <= {}", low ? " and" : "", bound_text(field, field.most));
  return text;
}

std::optional<Value> coerce(const Field& field, const Value& value, Problems& problems) {
  if (value.untyped && value.text.empty() &&
      is_one_word(field.type)) {  // a variable of a shell that is unset
    problems.add(value.at, "{}: expected {}, got nothing; write null for the default", field.path,
                 expectation(field));
    return std::nullopt;
  }
  try {
    return Coercion(field, problems)(value.untyped ? typed(field, value) : value);
  } catch (const ConfigError& e) {  // a malformed [list] on the command line
    problems.add(value.at, "{}: expected {}, got {}", field.path, expectation(field), describe(value));
    return std::nullopt;
  }
}

}  // namespace ottava::config
