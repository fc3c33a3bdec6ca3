#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/data/tokenizer/definition.h"

namespace ottava::tokenizer {

/// How often two tokens are neighbours in a multiset of words, kept up to date while pairs are merged. A
/// merge costs only the words that contain the pair, not the whole text.
class PairCounts {
 public:
  /// Words start as their bytes; byte b is token b.
  explicit PairCounts(const std::unordered_map<std::string, int64_t>& words);

  struct Best {
    int32_t left = -1, right = -1;
    int64_t count = 0;
  };
  /// The pair seen most often; among equals the one with the smallest ids. Count 0: no word has two tokens.
  Best best();
  /// Replaces the pair everywhere, from the left of each word.
  void merge(const Merge& merge);

 private:
  struct Word {
    std::vector<int32_t> ids;
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<int32_t> words;  ///< where it was seen at some time, perhaps more than once
  };
  struct Candidate {
    int64_t count;
    uint64_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  void add(const Word& word, int32_t index);
  void subtract(const Word& word);

  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::vector<Candidate> heap_;  ///< counts in it may be out of date; best() repairs what it meets
  std::vector<uint64_t> grown_;  ///< pairs whose count rose during one merge
};

}  // namespace ottava::tokenizer
