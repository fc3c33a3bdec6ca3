#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/data/tokenizer/definition.h"

namespace ottava::tokenizer {

/// Byte-pair encoding of one word: starts from its bytes and applies the earliest merge (leftmost first)
/// until none fits. Two words in three are found in a cache of fixed size; any other word of n bytes costs
/// O(n log n).
class Bpe {
 public:
  explicit Bpe(const TokenizerDefinition& definition);

  /// What one thread needs. Its content changes speed, never ids.
  class Scratch {
   public:
    Scratch();

   private:
    friend class Bpe;
    static constexpr size_t kEntries = size_t{1} << 15;
    /// One cache line. Longer words, and words of more tokens, are rare and not cached.
    struct alignas(64) Entry {
      static constexpr size_t kBytes = 22, kIds = 10;
      uint8_t length = 0;
      uint8_t count = 0;
      char bytes[kBytes] = {};
      int32_t ids[kIds] = {};
    };
    struct Symbol {
      int32_t id, previous, next;
    };
    struct Candidate {
      uint64_t order;  ///< rank, then position
      int32_t left, right, result;
      bool operator<(const Candidate& other) const { return order > other.order; }  // a min-heap
    };
    std::vector<Entry> cache;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  /// Appends the ids of `word`. Throws DataError for a word of 2^31 bytes or more.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = 0;
    int32_t result = -1;
  };
  const Slot* find(int32_t left, int32_t right) const;
  void merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_ids_{};
  std::vector<Slot> slots_;  ///< open addressing, at most half full
  int shift_ = 0;
  /// Filled for ignore_merges only; the keys point into the definition.
  std::unordered_map<std::string_view, int32_t> whole_words_;
};

}  // namespace ottava::tokenizer
