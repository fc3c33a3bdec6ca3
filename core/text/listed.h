#pragma once

#include <fmt/core.h>

#include <iterator>
#include <limits>
#include <string>
#include <string_view>

namespace ottava {

/// Appends an item to a list in words: "a", then "a, b".
inline void add_item(std::string& list, std::string_view item, std::string_view separator = ", ") {
  if (!list.empty()) list += separator;
  list += item;
}

/// text_of(item) of each item: "a, b"; empty for none; "a, b and 3 more" if there are more than `most`.
template <class Items, class Text>
std::string listed(const Items& items, const Text& text_of,
                   size_t most = std::numeric_limits<size_t>::max()) {
  std::string list;
  size_t shown = 0;
  for (auto item = std::begin(items); item != std::end(items) && shown < most; ++item, ++shown)
    add_item(list, text_of(*item));
  if (std::size(items) > shown) list += fmt::format(" and {} more", std::size(items) - shown);
  return list;
}

}  // namespace ottava
