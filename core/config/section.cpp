#include "core/config/section.h"

#include "core/config/nearest.h"
#include "core/contains.h"

namespace ottava::config {
namespace {

void assign(bool& target, const Value& v) { target = v.boolean; }
void assign(int64_t& target, const Value& v) { target = v.integer; }
void assign(double& target, const Value& v) { target = v.real; }
void assign(std::string& target, const Value& v) { target = v.text; }

template <class T>
void bind(Field& f, T& target) {
  f.get = [&target] { return Value::of(target); };
  f.set = [&target](const Value& v) { assign(target, v); };
  f.fallback = f.get();
}

template <class T>
void bind(Field& f, std::optional<T>& target) {
  f.nullable = true;
  f.get = [&target] { return target ? Value::of(*target) : Value{}; };
  f.set = [&target](const Value& v) {
    if (v.kind == Value::Kind::null) {
      target.reset();
    } else {
      assign(target.emplace(), v);
    }
  };
  f.fallback = f.get();
}

template <class T>
constexpr Type kType = Type::text;
template <>
constexpr Type kType<bool> = Type::boolean;
template <>
constexpr Type kType<int64_t> = Type::integer;
template <>
constexpr Type kType<double> = Type::real;
template <class T>
constexpr Type kType<std::optional<T>> = kType<T>;

}  // namespace

std::string_view name_of(Type type) {
  static constexpr std::string_view kNames[] = {"true or false", "an integer",        "a number",
                                                "a string",      "a list of strings", "a list of tables"};
  return kNames[static_cast<size_t>(type)];
}

Field& Field::unit(std::string text) {
  unit_text = std::move(text);
  return *this;
}
Field& Field::range(double low, double high) {
  least = low;
  most = high;
  return *this;
}
Field& Field::at_least(double low) {
  least = low;
  return *this;
}
Field& Field::above(double bound) {
  least = bound;
  least_open = true;
  return *this;
}
Field& Field::or_value(double value) {
  beside_range = value;
  return *this;
}
Field& Field::one_of(std::vector<std::string> values) {
  choices = std::move(values);
  return *this;
}
Field& Field::refuse_value(std::string value, std::string why) {
  refused_values.emplace_back(std::move(value), std::move(why));
  return *this;
}
Field& Field::rename_value(std::string old, std::string value) {
  renamed_values.emplace_back(std::move(old), std::move(value));
  return *this;
}

Field& Field::suggest(std::string word, std::string value) {
  suggested_values.emplace_back(std::move(word), std::move(value));
  return *this;
}
Field& Field::or_scalar() {
  accepts_scalar = true;
  return *this;
}
Field& Field::required() {
  is_required = true;
  return *this;
}
Field& Field::noted(std::string why) {
  fate = Fate::noted;
  fate_text = std::move(why);
  return *this;
}
Field& Field::refused(std::string why) {
  fate = Fate::refused;
  fate_text = std::move(why);
  return *this;
}

Field& Section::add(std::string name, Type type, std::string meaning) {
  Field& f = fields_.emplace_back();
  f.path = join(name);
  f.name = std::move(name);
  f.type = type;
  f.meaning_text = std::move(meaning);
  return f;
}

template <class T>
Field& Section::field(std::string name, T& target, std::string meaning) {
  Field& f = add(std::move(name), kType<T>, std::move(meaning));
  bind(f, target);
  return f;
}
template Field& Section::field(std::string, bool&, std::string);
template Field& Section::field(std::string, int64_t&, std::string);
template Field& Section::field(std::string, double&, std::string);
template Field& Section::field(std::string, std::string&, std::string);
template Field& Section::field(std::string, std::optional<bool>&, std::string);
template Field& Section::field(std::string, std::optional<int64_t>&, std::string);
template Field& Section::field(std::string, std::optional<double>&, std::string);
template Field& Section::field(std::string, std::optional<std::string>&, std::string);

Field& Section::field(std::string name, std::vector<std::string>& target, std::string meaning) {
  Field& f = add(std::move(name), Type::text_list, std::move(meaning));
  f.get = [&target] { return Value::list_of(target); };
  f.set = [&target](const Value& v) {
    target.clear();
    for (const Value& item : v.items) target.push_back(item.text);
  };
  f.fallback = f.get();
  return f;
}

Section& Section::section(std::string name) { return sections_.emplace_back(join(name)); }

Field& Section::foreign(std::string name, Value fallback, std::string meaning) {
  constexpr Type kTypes[] = {Type::text, Type::boolean,   Type::integer, Type::real,
                             Type::text, Type::text_list, Type::text};  // by Value::Kind
  Field& f = foreign(std::move(name), kTypes[static_cast<size_t>(fallback.kind)]);
  f.nullable = false;
  f.fallback = std::move(fallback);
  f.meaning_text = std::move(meaning);
  return f;
}

Field& Section::foreign(std::string name, Type type) {
  Field& f = add(std::move(name), type);
  f.nullable = true;
  f.has_target = false;
  f.set = [](const Value&) {};
  f.get = [] { return Value{}; };
  return f;
}

void Section::renamed(std::string old, std::string path) {
  renames_.emplace_back(std::move(old), std::move(path));
}

Section& Section::meaning(std::string text) {
  meaning_ = std::move(text);
  return *this;
}

Field* Section::find_field(std::string_view name) { return find_by(fields_, name, &Field::name); }

Section* Section::find_section(std::string_view name) {
  return find_by(sections_, name, [](const Section& s) { return last_name(s.path_); });
}

const std::string* Section::find_rename(std::string_view old) const {
  const auto* rename = find_by(renames_, old, &std::pair<std::string, std::string>::first);
  return rename ? &rename->second : nullptr;
}

}  // namespace ottava::config
