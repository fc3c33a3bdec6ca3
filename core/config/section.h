#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/config/value.h"

namespace ottava::config {

class Section;

/// Ends of ranges for numbers that become float32, in digits short enough to show: rounded to float32 they
/// are its least that is not subnormal, its largest, and its largest below 1, however many digits those have.
inline constexpr double kLeastFloat = 1.1754943e-38, kMostFloat = 3.4028235e38, kMostBelowOne = 0.99999997;

/// What becomes of a key that a file sets.
enum class Fate {
  used,
  noted,    ///< accepted without effect; one line says so if it is not at its default
  refused,  ///< an error if set to anything but its default, because it would change results
};

/// Types of a key's value.
enum class Type { boolean, integer, real, text, text_list, table_list };
std::string_view name_of(Type type);

/// One key: how it is read, checked, explained and printed. Made by Section; the chained calls complete the
/// row.
class Field {
 public:
  /// "steps", "bytes", "seconds", ...
  Field& unit(std::string text);
  Field& range(double least, double most);
  Field& at_least(double least);
  Field& above(double bound);
  /// A number outside the range that is a value too, such as -1 for all; the meaning says what it stands for.
  Field& or_value(double value);
  /// The allowed values of a text, or of every element of a list of texts.
  Field& one_of(std::vector<std::string> values);
  /// A value (in its YAML spelling) that is known but not available, and why.
  Field& refuse_value(std::string value, std::string why);
  /// A value that is now called differently; it is read as the new one, and a note says so.
  Field& rename_value(std::string old, std::string value);
  /// A word that is no value, in upper or lower case; its error suggests `value`.
  Field& suggest(std::string word, std::string value);
  /// A text that may be written as a number or boolean (`selective_ac_option: 2`).
  Field& or_scalar();
  /// Keys of a list's tables: an error when absent.
  Field& required();
  Field& noted(std::string why);
  Field& refused(std::string why);

  std::string name;  ///< "warmup_steps"
  std::string path;  ///< "lr_scheduler.warmup_steps"
  Type type = Type::text;
  bool nullable = false;     ///< null is a value of its own; elsewhere null means the default
  bool has_target = true;    ///< false: known, checked, and kept nowhere
  Value fallback;            ///< the default
  std::string meaning_text;  ///< one line; empty for a foreign key
  std::string unit_text, fate_text;
  Fate fate = Fate::used;
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool least_open = false;             ///< the bound itself is outside
  std::optional<double> beside_range;  ///< allowed too
  std::vector<std::string> choices;
  std::vector<std::pair<std::string, std::string>> refused_values, renamed_values, suggested_values;
  bool accepts_scalar = false, is_required = false;

  /// Write and read the setting. `set` is given a value of the field's type (or null if nullable).
  std::function<void(const Value&)> set;
  std::function<Value()> get;

  /// For Type::table_list: `clear` empties the list, `append` adds an element and declares it, `elements`
  /// declares all elements, `prototype` declares one that is not in the list.
  struct Tables {
    std::function<void()> clear;
    std::function<Section()> append;
    std::function<std::vector<Section>()> elements;
    std::function<Section()> prototype;
  };
  std::optional<Tables> tables;

  /// Filled while reading.
  std::optional<Location> given;
  std::optional<Value> last;  ///< as last set, in the field's type; nothing when that failed
  int given_in = 0;           ///< which source; giving a key twice in one is an error
};

template <class T>
struct EnumIn {
  using type = T;
};
template <class E>
struct EnumIn<std::optional<E>> {
  using type = E;
};
/// E of E or of std::optional<E>.
template <class T>
using EnumOf = typename EnumIn<T>::type;

/// The table of a section's keys, bound to one instance of its struct. Beside a struct stands
///     void declare(config::Section& s, OptimizerConfig& c) {
///       s.field("lr", c.lr, "peak learning rate").at_least(0);
///       s.choice("decay_type", c.decay_type, {{"linear", Decay::linear}, {"cosine", Decay::cosine}},
///                "how the learning rate falls");
///       s.section("float8", c.float8);
///     }
/// and from it come parsing, overrides, the printed configuration and the schema. The meaning of a key is one
/// line for the printed configuration, editors and configs/keys.md, without a full stop. Defaults are the
/// values that the instance has when it is declared, but for a list of tables, which is empty. The instance
/// must outlive the section.
class Section {
 public:
  explicit Section(std::string path = "") : path_(std::move(path)) {}
  Section(Section&&) = default;
  Section& operator=(Section&&) = default;

  /// T is bool, int64_t, double, std::string, or an optional of one of these, which also takes null.
  template <class T>
  Field& field(std::string name, T& target, std::string meaning);
  /// A list; one text may be written without brackets, and `a,b,c` on the command line.
  Field& field(std::string name, std::vector<std::string>& target, std::string meaning);

  /// An enumeration by its names; an optional of one also takes null.
  template <class T>
  Field& choice(std::string name, T& target, std::vector<std::pair<std::string, EnumOf<T>>> names,
                std::string meaning);

  /// A list of tables, each declared by its own `declare`.
  template <class T>
  Field& list(std::string name, std::vector<T>& target, std::string meaning);

  /// A nested section, declared by its own `declare`.
  template <class T>
  Section& section(std::string name, T& target);
  Section& section(std::string name);

  /// A key that other trainers' files have and that is kept nowhere; `fallback` gives its type and default.
  Field& foreign(std::string name, Value fallback, std::string meaning = {});
  Field& foreign(std::string name, Type type);  ///< default null

  /// `old` (a key of this section, or a whole section) is now called `path` (full: "training.seed").
  void renamed(std::string old, std::string path);

  /// Sets one line about the section.
  Section& meaning(std::string text);

  const std::string& path() const { return path_; }
  /// The path of a name in this section.
  std::string join(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }
  const std::string& meaning_text() const { return meaning_; }
  std::deque<Field>& fields() { return fields_; }
  const std::deque<Field>& fields() const { return fields_; }
  std::deque<Section>& sections() { return sections_; }
  const std::deque<Section>& sections() const { return sections_; }
  const std::vector<std::pair<std::string, std::string>>& renames() const { return renames_; }

  Field* find_field(std::string_view name);
  Section* find_section(std::string_view name);
  /// Full new path, or null.
  const std::string* find_rename(std::string_view old) const;

 private:
  Field& add(std::string name, Type type, std::string meaning = {});

  std::string path_, meaning_;
  std::deque<Field> fields_;  // deque: references stay valid while the table grows
  std::deque<Section> sections_;
  std::vector<std::pair<std::string, std::string>> renames_;
};

template <class T>
Field& Section::choice(std::string name, T& target, std::vector<std::pair<std::string, EnumOf<T>>> names,
                       std::string meaning) {
  static_assert(std::is_enum_v<EnumOf<T>>);
  Field& f = add(std::move(name), Type::text, std::move(meaning));
  f.accepts_scalar = true;
  f.nullable = !std::is_enum_v<T>;
  for (const auto& [text, value] : names) f.choices.push_back(text);
  f.get = [&target, names] {
    for (const auto& [text, value] : names) {
      if (value == target) return Value::of(text);
    }
    return std::is_enum_v<T> ? Value::of(std::string("?")) : Value{};
  };
  f.set = [&target, names](const Value& v) {
    if constexpr (!std::is_enum_v<T>) target.reset();
    for (const auto& [text, value] : names) {
      if (text == v.text) target = value;
    }
  };
  f.fallback = f.get();
  return f;
}

template <class T>
Field& Section::list(std::string name, std::vector<T>& target, std::string meaning) {
  Field& f = add(std::move(name), Type::table_list, std::move(meaning));
  auto declared = [](T& element, const std::string& path) {
    Section section(path);
    declare(section, element);
    return section;
  };
  std::string path = f.path;
  auto prototype = std::make_shared<T>();
  f.tables.emplace();
  f.tables->clear = [&target] { target.clear(); };
  f.tables->append = [&target, declared, path] {
    T& element = target.emplace_back();
    return declared(element, path + "[" + std::to_string(target.size() - 1) + "]");
  };
  f.tables->elements = [&target, declared, path] {
    std::vector<Section> sections;
    for (size_t i = 0; i < target.size(); ++i)
      sections.push_back(declared(target[i], path + "[" + std::to_string(i) + "]"));
    return sections;
  };
  f.tables->prototype = [prototype, declared, path] { return declared(*prototype, path + "[]"); };
  f.fallback.kind = Value::Kind::list;
  return f;
}

template <class T>
Section& Section::section(std::string name, T& target) {
  Section& child = section(std::move(name));
  declare(child, target);
  return child;
}

}  // namespace ottava::config
