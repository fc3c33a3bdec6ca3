#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config/problems.h"
#include "core/config/section.h"

namespace ottava::config {

/// Fills the structs behind a table of sections from several sources, each stronger than the one before;
/// collects problems instead of throwing. A value that a stronger source replaces is still checked for type,
/// range and choices, but only the final value decides whether a key is refused.
class Reader {
 public:
  Reader(Section& root, Problems& problems) : root_(root), problems_(problems) {}

  /// Reads a file's tree. Null gives a key its default back.
  void read(const Value& tree);
  /// Reads `--section.key value` and `--section.key=value`; booleans also as `--section.key` and
  /// `--section.no_key`; lists as a,b,c or [a, b]. Hyphens in names count as underscores. Of several, the
  /// last wins; where they differ, a note says so.
  void read_overrides(const std::vector<std::string>& arguments);
  /// Decides fates: adds a problem per refused setting and returns one line per renamed one, one per
  /// option that was given several values, and one per reason for which keys are noted.
  std::vector<std::string> finish();

 private:
  void read_table(Section& section, const Value& table);
  void read_member(Section& section, const Member& member);
  void read_renamed(const std::string& old, const std::string& path, const Member& member);
  void read_field(Field& field, const Value& value, const Location& key_at);
  void take_new_name(const Field& field, Value& value);
  void read_tables(Field& field, const Value& list);
  void unknown(const Section& section, const std::string& key, const Location& at);
  void finish(Section& section);
  void finish(Field& field);
  void note(const Field& field);
  void note_repeated(const std::string& path, const std::vector<std::string>& texts);
  size_t read_override(const std::vector<std::string>& arguments, size_t i);

  Section& root_;
  Problems& problems_;
  std::vector<std::string> notes_;
  /// Noted keys with the same reason share a line.
  struct Meaningless {
    Location at;
    std::string keys, why;
  };
  std::vector<Meaningless> meaningless_;
  int source_ = 0;  ///< counts the sources, to tell a key given twice from one that is replaced
  bool last_wins_ = false;
  std::map<std::string, std::vector<std::string>> overrides_;  ///< the values of each, as they were written
};

/// A field by its full path, following renames (`*is_renamed` then says so), or null.
Field* find_field(Section& root, std::string_view path, bool* is_renamed = nullptr);
Section* find_section(Section& root, std::string_view path);
/// Full paths of all fields, in declared order.
std::vector<std::string> all_paths(const Section& root);

}  // namespace ottava::config
