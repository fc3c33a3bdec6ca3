#include "core/data/tokenizer/pair_counts.h"

#include <algorithm>

#include "core/data/tokenizer/definition.h"

namespace ottava::tokenizer {
namespace {

void sort_unique(auto& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace

PairCounts::PairCounts(const std::unordered_map<std::string, int64_t>& words) {
  for (const auto& [bytes, count] : words) {
    if (bytes.size() < 2) continue;
    words_.push_back({{}, count});
    for (char b : bytes) words_.back().ids.push_back(static_cast<unsigned char>(b));
    add(words_.back(), static_cast<int32_t>(words_.size() - 1));
  }
  for (const auto& [pair, value] : pairs_) heap_.push_back({value.count, pair});
  std::make_heap(heap_.begin(), heap_.end());
}

void PairCounts::add(const Word& word, int32_t index) {
  for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
    uint64_t pair = pair_key(word.ids[i], word.ids[i + 1]);
    Pair& entry = pairs_[pair];
    entry.count += word.count;
    if (entry.words.empty() || entry.words.back() != index) entry.words.push_back(index);
    grown_.push_back(pair);
  }
}

void PairCounts::subtract(const Word& word) {
  for (size_t i = 0; i + 1 < word.ids.size(); ++i)
    pairs_[pair_key(word.ids[i], word.ids[i + 1])].count -= word.count;
}

PairCounts::Best PairCounts::best() {
  while (!heap_.empty()) {
    Candidate top = heap_.front();
    auto entry = pairs_.find(top.pair);
    int64_t now = entry == pairs_.end() ? 0 : entry->second.count;
    if (now == top.count && now > 0) {
      return {static_cast<int32_t>(top.pair >> 32), static_cast<int32_t>(top.pair & 0xffffffffu), now};
    }
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    if (now > 0) {
      heap_.push_back({now, top.pair});
      std::push_heap(heap_.begin(), heap_.end());
    }
  }
  return {};
}

void PairCounts::merge(const Merge& m) {
  auto entry = pairs_.find(pair_key(m.left, m.right));
  if (entry == pairs_.end()) return;
  std::vector<int32_t> where = std::move(entry->second.words);
  sort_unique(where);
  grown_.clear();
  for (int32_t index : where) {
    Word& word = words_[index];
    bool has_pair = false;
    for (size_t i = 0; i + 1 < word.ids.size() && !has_pair; ++i) {
      has_pair = word.ids[i] == m.left && word.ids[i + 1] == m.right;
    }
    if (!has_pair) continue;
    subtract(word);
    size_t kept = 0;
    for (size_t i = 0; i < word.ids.size(); ++i) {
      bool here = i + 1 < word.ids.size() && word.ids[i] == m.left && word.ids[i + 1] == m.right;
      word.ids[kept++] = here ? m.result : word.ids[i];
      i += here;
    }
    word.ids.resize(kept);
    add(word, index);
  }
  pairs_.erase(pair_key(m.left, m.right));
  sort_unique(grown_);
  for (uint64_t pair : grown_) {
    auto it = pairs_.find(pair);
    if (it == pairs_.end()) continue;
    heap_.push_back({it->second.count, pair});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

}  // namespace ottava::tokenizer
