#include "core/data/whole_packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "core/data/chat/masked_token.h"
#include "core/data/order.h"

namespace ottava::data {
namespace {

using Documents = std::vector<std::vector<int32_t>>;

std::vector<int32_t> longest_first(const Documents& documents, std::span<const int32_t> order) {
  std::vector<int32_t> sorted(order.begin(), order.end());
  if (sorted.empty()) {
    sorted.resize(documents.size());
    std::iota(sorted.begin(), sorted.end(), 0);
  }
  std::ranges::stable_sort(sorted, std::greater<>{}, [&](int32_t d) { return documents[d].size(); });
  return sorted;
}

}  // namespace

WholePacked pack_whole(const Documents& documents, const WholePacking& how) {
  WholePacked out;
  const size_t capacity = how.seq_len + 1;
  std::vector<std::vector<int32_t>> windows;
  std::set<std::pair<size_t, size_t>> open;  // (room, window)
  for (int32_t d : longest_first(documents, how.order)) {
    const size_t length = documents[d].size();
    if (length > capacity) {
      ++out.too_long;
      out.dropped_tokens += length;
    }
    if (length == 0 || length > capacity) continue;
    ++out.documents;
    out.tokens += length;
    auto fits = open.lower_bound({length, 0});
    if (fits == open.end()) {
      windows.emplace_back();
      fits = open.insert({capacity, windows.size() - 1}).first;
    }
    const auto [room, window] = *fits;
    open.erase(fits);
    if (how.share_windows && room > length) open.insert({room - length, window});
    windows[window].push_back(d);
  }
  std::vector<int32_t> order(windows.size());
  std::iota(order.begin(), order.end(), 0);
  if (how.windows) order = permutation(std::ssize(windows), *how.windows);
  std::vector<int32_t>& tokens = out.packed.tokens;
  tokens.reserve(windows.size() * capacity);
  for (int32_t w : order) {
    const size_t end = tokens.size() + capacity;
    for (int32_t d : windows[w]) {
      const std::vector<int32_t>& document = documents[d];
      out.packed.document_starts.push_back(std::ssize(tokens));
      out.sources.push_back(d);
      tokens.push_back(masked(id_of(document[0])));
      tokens.insert(tokens.end(), document.begin() + 1, document.end());
    }
    if (tokens.size() < end) {
      out.packed.document_starts.push_back(std::ssize(tokens));
      out.sources.push_back(-1);
    }
    tokens.resize(end, masked(how.pad_id));
  }
  return out;
}

}  // namespace ottava::data
