#include "core/config/print.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/config/coerce.h"
#include "core/config/nearest.h"
#include "core/contains.h"
#include "core/text/listed.h"
#include "core/text/split.h"

namespace ottava::config {
namespace {

/// Double quotes with YAML's escapes; bytes above 127 are UTF-8 and stay.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// A text that is safe without quotes everywhere: letters, digits and a few signs, and not a number or
/// boolean.
bool is_plain(std::string_view text) {
  if (text.empty() || plain_scalar(text, {}).kind != Value::Kind::text) return false;
  bool starts_well =
      std::isalnum(static_cast<unsigned char>(text[0])) || text[0] == '/' || text[0] == '.' || text[0] == '_';
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && !std::isalnum(byte) && !contains(std::string_view("_./- +"), c)) return false;
  }
  return starts_well && text.back() != ' ' && !contains_text(text, " #");
}

std::string scalar_text(const Value& value) {
  using enum Value::Kind;
  switch (value.kind) {
    case null:
      return "null";
    case boolean:
      return value.boolean ? "true" : "false";
    case integer:
      return std::to_string(value.integer);
    case real:
      return to_text(value.real);
    default:
      return is_plain(value.text) ? value.text : in_quotes(value.text);
  }
}

std::string meaning_with_unit(const Field& field) {
  return field.unit_text.empty() ? field.meaning_text
                                 : fmt::format("{} [{}]", field.meaning_text, field.unit_text);
}

/// Whether a meaning explains a choice, as in "auto: detected" or "linear, cosine: ..."; the empty one is
/// called "empty".
bool explains(std::string_view meaning, std::string_view choice) {
  if (choice.empty()) choice = "empty";
  for (size_t at = meaning.find(choice); at != std::string_view::npos; at = meaning.find(choice, at + 1)) {
    const size_t end = at + choice.size();
    const bool begins_word = at == 0 || meaning[at - 1] == ' ';
    if (begins_word && end < meaning.size() && (meaning[end] == ':' || meaning[end] == ',')) return true;
  }
  return false;
}

std::string note_of(const Field& field) {
  std::string note = meaning_with_unit(field);
  const auto is_explained = [&](const std::string& choice) { return explains(field.meaning_text, choice); };
  if (!std::ranges::all_of(field.choices, is_explained)) note += " (" + one_of_text(field.choices) + ")";
  return note;
}

void print_tables(const Field& field, std::string& out, const std::string& indent) {
  std::vector<Section> elements = field.tables->elements();
  if (elements.empty()) {
    out += " []\n";
    return;
  }
  out += "\n";
  for (const Section& element : elements) {
    Value table{.kind = Value::Kind::table};
    for (const Field& f : element.fields()) table.members.push_back({f.name, {}, f.get()});
    out += fmt::format("{}  - {}\n", indent, to_inline_yaml(table));
  }
}

void print_section(const Section& section, std::string& out, const std::string& indent,
                   const PrintOptions& options) {
  std::string body;
  for (const Field& field : section.fields()) {
    if (!field.has_target) continue;
    if (options.comments && !field.meaning_text.empty())
      body += fmt::format("{}# {}\n", indent, note_of(field));
    body += fmt::format("{}{}:", indent, field.name);
    if (field.type == Type::table_list) {
      print_tables(field, body, indent);
    } else {
      body += fmt::format(" {}\n", to_inline_yaml(field.get()));
    }
  }
  for (const Section& child : section.sections()) {
    std::string inner;
    print_section(child, inner, indent + "  ", options);
    if (inner.empty()) continue;
    if (indent.empty() && !body.empty()) body += "\n";
    if (options.comments && !child.meaning_text().empty())
      body += fmt::format("{}# {}\n", indent, child.meaning_text());
    body += fmt::format("{}{}:\n{}", indent, last_name(child.path()), inner);
  }
  out += body;
}

void collect_fates(const Section& section, std::vector<KeyFate>& rows) {
  for (const Field& f : section.fields()) {
    static constexpr std::string_view kNames[] = {"used", "noted", "refused"};
    rows.push_back({f.path, expectation(f), to_inline_yaml(f.fallback),
                    std::string(kNames[static_cast<size_t>(f.fate)]),
                    f.fate == Fate::used ? meaning_with_unit(f) : f.fate_text});
  }
  for (const auto& [old, now] : section.renames())
    rows.push_back({section.join(old), "", "", "renamed", now});
  for (const Section& child : section.sections()) collect_fates(child, rows);
}

}  // namespace

std::vector<std::string> parts_between_commas(std::string_view text) {
  std::vector<std::string> out;
  for (std::string_view part : split_text(text, ',')) {
    part.remove_prefix(std::min(part.find_first_not_of(" \t"), part.size()));
    out.emplace_back(part.substr(0, part.find_last_not_of(" \t") + 1));
  }
  return out;
}

std::string to_quoted_list(const std::vector<std::string>& texts) {
  return fmt::format("[{}]", listed(texts, in_quotes));
}

std::string to_inline_yaml(const Value& value) {
  if (value.kind == Value::Kind::list) return "[" + listed(value.items, to_inline_yaml) + "]";
  if (value.kind == Value::Kind::table) {
    const auto text = [](const Member& m) { return fmt::format("{}: {}", m.key, to_inline_yaml(m.value)); };
    return "{" + listed(value.members, text) + "}";
  }
  return scalar_text(value);
}

std::string to_yaml(const Section& root, const PrintOptions& options) {
  std::string out;
  print_section(root, out, "", options);
  return out;
}

std::vector<KeyFate> fates(const Section& root) {
  std::vector<KeyFate> rows;
  collect_fates(root, rows);
  return rows;
}

}  // namespace ottava::config
