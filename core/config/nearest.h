#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ottava::config {

/// The last name of a path: `steps` of training.steps.
inline std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }

/// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate that a person most likely meant: one that is within a third of the word's length in edits,
/// at least one, or that contains the word (of at least four letters). The first among equals; "" if there is
/// none, and for a word of more than 200 letters.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// The names as `a, b or c`; an empty name is shown as "".
std::string one_of_text(const std::vector<std::string>& names);

}  // namespace ottava::config
