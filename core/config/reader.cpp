#include "core/config/reader.h"

#include <fmt/ranges.h>

#include "core/config/coerce.h"
#include "core/config/nearest.h"
#include "core/config/print.h"
#include "core/text/listed.h"
#include "core/text/split.h"

namespace ottava::config {
namespace {

void collect_paths(const Section& section, std::vector<std::string>& paths) {
  for (const Field& f : section.fields()) paths.push_back(f.path);
  for (const Section& s : section.sections()) collect_paths(s, paths);
}

/// "name: ..., path: ...": what an element of a list of tables must have.
std::string required_keys(const Section& element) {
  std::string keys;
  for (const Field& f : element.fields())
    if (f.is_required) add_item(keys, f.name + ": ...");
  return keys;
}

/// "{model: {dim: ...}}" of "model.dim".
std::string nested(std::string_view path) {
  const std::vector<std::string_view> names = split_text(path, '.');
  return fmt::format("{{{}: ...{}", fmt::join(names, ": {"), std::string(names.size(), '}'));
}

}  // namespace

std::vector<std::string> all_paths(const Section& root) {
  std::vector<std::string> paths;
  collect_paths(root, paths);
  return paths;
}

Section* find_section(Section& root, std::string_view path) {
  Section* section = &root;
  for (std::string_view name : split_text(path, '.'))
    section = section ? section->find_section(name) : nullptr;
  return section;
}

Field* find_field(Section& root, std::string_view path, bool* is_renamed) {
  Section* section = &root;
  std::string_view rest = path;
  while (section) {
    size_t dot = rest.find('.');
    std::string_view name = rest.substr(0, dot);
    if (const std::string* now = section->find_rename(name)) {
      if (is_renamed) *is_renamed = true;
      return find_field(root, dot == std::string_view::npos ? *now : *now + std::string(rest.substr(dot)),
                        nullptr);
    }
    if (dot == std::string_view::npos) return section->find_field(name);
    section = section->find_section(name);
    rest.remove_prefix(dot + 1);
  }
  return nullptr;
}

void Reader::read(const Value& tree) {
  ++source_;
  read_table(root_, tree);
}

void Reader::read_table(Section& section, const Value& table) {
  if (table.kind == Value::Kind::null) return;  // "metrics:" with every key commented out
  if (table.kind != Value::Kind::table) {
    problems_.spoil(section.path());
    return problems_.add(table.at, "{}: expected a section with keys, got {}", section.path(),
                         describe(table));
  }
  for (const Member& member : table.members) read_member(section, member);
}

void Reader::read_member(Section& section, const Member& member) {
  if (const std::string* now = section.find_rename(member.key)) {
    return read_renamed(section.join(member.key), *now, member);
  }
  if (Field* field = section.find_field(member.key)) return read_field(*field, member.value, member.at);
  if (Section* child = section.find_section(member.key)) return read_table(*child, member.value);
  unknown(section, member.key, member.at);
}

void Reader::read_renamed(const std::string& old, const std::string& path, const Member& member) {
  notes_.push_back(fmt::format("{}: {} is now called {}", to_string(member.at), old, path));
  if (Field* field = find_field(root_, path)) return read_field(*field, member.value, member.at);
  read_table(*find_section(root_, path), member.value);
}

void Reader::read_field(Field& field, const Value& value, const Location& key_at) {
  if (field.given && field.given_in == source_ && !last_wins_) {
    return problems_.add(key_at, "{} is given twice, first at {}", field.path, to_string(*field.given));
  }
  field.given = value.at.known() ? value.at : key_at;
  field.given_in = source_;
  problems_.origins[field.path] = *field.given;
  std::optional<Value> checked = coerce(field, value, problems_);
  field.last.reset();
  if (!checked) return problems_.spoil(field.path);
  if (field.type == Type::table_list) return read_tables(field, *checked);
  take_new_name(field, *checked);
  for (Value& item : checked->items) take_new_name(field, item);
  bool takes_default = checked->kind == Value::Kind::null && !field.nullable;
  field.last = takes_default ? field.fallback : *checked;
  field.set(*field.last);
}

void Reader::take_new_name(const Field& field, Value& value) {
  for (const auto& [old, now] : field.renamed_values) {
    if (value.text != old) continue;
    notes_.push_back(
        fmt::format("{}: {}: '{}' is now called '{}'", to_string(value.at), field.path, old, now));
    value.text = now;
  }
}

void Reader::read_tables(Field& field, const Value& list) {
  field.tables->clear();
  for (const Value& item : list.items) {
    Section element = field.tables->append();
    if (item.kind != Value::Kind::table) {
      const std::string keys = required_keys(element);
      problems_.add(item.at, "{}: expected a table of keys{}, got {}", element.path(),
                    keys.empty() ? "" : " {" + keys + "}", describe(item));
      problems_.spoil(field.path);
      continue;
    }
    read_table(element, item);
    for (Field& f : element.fields()) {
      if (!f.is_required || f.given) continue;
      problems_.add(item.at, "{} is missing: {}", f.path, f.meaning_text);
      problems_.spoil(field.path);
    }
    finish(element);
  }
}

void Reader::unknown(const Section& section, const std::string& key, const Location& at) {
  std::vector<std::string> here;
  for (const Field& f : section.fields()) here.push_back(f.name);
  for (const Section& s : section.sections()) here.emplace_back(last_name(s.path()));
  problems_.spoil(section.path());
  const std::string shown = section.join(key.size() > 80 ? key.substr(0, 80) + "..." : key);
  std::string near = nearest(key, here);
  if (!near.empty()) near = section.join(near);
  for (const std::string& path : all_paths(root_)) {
    if (key != last_name(path) && path == section.join(key)) {
      return problems_.add(at, "unknown key '{}': the keys of a section are nested in it, as in {}", key,
                           nested(key));
    }
    if (near.empty() && last_name(path) == key) near = path;  // right key, wrong section
  }
  if (!near.empty()) return problems_.add(at, "unknown key {}; did you mean {}?", shown, near);
  problems_.add(at, "unknown key {}; {} takes {}", shown, section.path().empty() ? "a file" : section.path(),
                one_of_text(here));
}

std::vector<std::string> Reader::finish() {
  finish(root_);
  for (const Meaningless& group : meaningless_) {
    notes_.push_back(fmt::format("{}: {} ignored: {}", to_string(group.at), group.keys, group.why));
  }
  meaningless_.clear();
  return notes_;
}

void Reader::finish(Section& section) {
  for (Field& f : section.fields()) finish(f);
  for (Section& s : section.sections()) finish(s);
}

void Reader::finish(Field& field) {
  if (!field.last) return;
  const Value& now = *field.last;
  for (const auto& [refused, why] : field.refused_values) {
    bool is_set = now.text == refused;
    for (const Value& item : now.items) is_set = is_set || item.text == refused;
    if (is_set) problems_.add(field.path, "{} is not supported: {}", refused, why);
  }
  if (field.fate == Fate::used || same(now, field.fallback)) return;
  if (field.fate == Fate::refused) {
    problems_.add(field.path, "{} is not supported: {}", to_inline_yaml(now), field.fate_text);
  } else {
    note(field);
  }
}

void Reader::note(const Field& field) {
  for (Meaningless& group : meaningless_) {
    if (group.why != field.fate_text) continue;
    group.keys += ", " + field.path;
    return;
  }
  meaningless_.push_back({*field.given, field.path, field.fate_text});
}

}  // namespace ottava::config
