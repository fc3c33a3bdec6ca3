#include "core/config/nearest.h"

#include <algorithm>

#include "core/contains.h"

namespace ottava::config {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({row[j - 1] + 1, previous[j] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(row);
  }
  return previous[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 200;  // of a person; more would only make the search slow
  if (word.size() > kLongestWord) return "";
  int limit = std::max(1, static_cast<int>(word.size()) / 3);
  std::string best;
  for (const std::string& candidate : candidates) {
    int distance = edit_distance(word, candidate);
    if (word.size() >= 4 && contains_text(candidate, word)) distance = std::min(distance, 1);
    if (distance <= limit) {
      best = candidate;
      limit = distance - 1;
    }
  }
  return best;
}

std::string one_of_text(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 == names.size() ? " or " : ", ";
    text += names[i].empty() ? "\"\"" : names[i];
  }
  return text;
}

}  // namespace ottava::config
