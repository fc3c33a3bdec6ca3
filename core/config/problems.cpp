#include "core/config/problems.h"

#include <algorithm>
#include <tuple>

#include "core/text/counted.h"

namespace ottava::config {

void Problems::add(const Location& at, std::string message) { found_.push_back({at, std::move(message)}); }

void Problems::add(std::string_view key, std::string message) {
  auto it = origins.find(key);
  add(it == origins.end() ? Location{} : it->second, fmt::format("{}: {}", key, message));
}

void Problems::add(std::string_view key, const Error& error) {
  const std::string_view what = error.what();
  add(key, std::string(what.substr(what.find("] ") + 2)));
}

bool Problems::sound(std::string_view section) const {
  const auto has = [](std::string_view outer, std::string_view path) {
    return path.starts_with(outer) && (path.size() == outer.size() || path[outer.size()] == '.');
  };
  return std::ranges::none_of(
      spoiled_, [&](const std::string& path) { return has(section, path) || has(path, section); });
}

std::vector<std::string> Problems::lines() const {
  std::vector<const Problem*> sorted;
  for (const Problem& problem : found_) sorted.push_back(&problem);
  std::ranges::stable_sort(sorted, {}, [](const Problem* p) {
    const int rank = !p->at.known() ? 2 : p->at.line == 0 ? 1 : 0;
    return std::tuple(rank, p->at.line, p->at.column);
  });
  std::vector<std::string> lines;
  for (const Problem* problem : sorted) lines.push_back(to_string(problem->at) + ": " + problem->text);
  return lines;
}

void Problems::throw_if_any(std::string_view what) const {
  if (found_.empty()) return;
  std::string text;
  for (const std::string& line : lines()) text += "\n  " + line;
  fail<ConfigError>("config", "{} in {}:{}", counted(found_.size(), "problem"), what, text);
}

}  // namespace ottava::config
