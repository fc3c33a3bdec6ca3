#include "core/data/tokenizer/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace ottava::tokenizer {

Bpe::Scratch::Scratch() : cache(kEntries) {}

Bpe::Bpe(const TokenizerDefinition& definition) {
  for (size_t id = definition.tokens.size(); id-- > 0;) {
    const std::string& bytes = definition.tokens[id];
    if (!definition.reachable[id]) continue;
    if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = static_cast<int32_t>(id);
    if (definition.ignore_merges) whole_words_[bytes] = static_cast<int32_t>(id);
  }
  size_t capacity = std::bit_ceil(std::max<size_t>(2 * definition.merges.size(), 16));
  slots_.resize(capacity);
  shift_ = 64 - std::countr_zero(capacity);
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const Merge& m = definition.merges[rank];
    uint64_t pair = pair_key(m.left, m.right);
    size_t at = pair * 0x9e3779b97f4a7c15u >> shift_;
    while (slots_[at].result >= 0 && slots_[at].pair != pair) at = (at + 1) & (capacity - 1);
    slots_[at] = {pair, static_cast<uint32_t>(rank), m.result};
  }
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  uint64_t pair = pair_key(left, right);
  for (size_t at = pair * 0x9e3779b97f4a7c15u >> shift_;; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].result < 0) return nullptr;
  }
}

void Bpe::merge(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  auto n = static_cast<int32_t>(word.size());
  symbols.clear();
  for (int32_t i = 0; i < n; ++i) {
    symbols.push_back({byte_ids_[static_cast<unsigned char>(word[i])], i - 1, i + 1 < n ? i + 1 : -1});
  }
  heap.clear();
  auto candidate = [&](int32_t at) {
    if (at < 0 || symbols[at].next < 0) return false;
    int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    const Slot* slot = find(left, right);
    if (slot)
      heap.push_back({uint64_t{slot->rank} << 32 | static_cast<uint32_t>(at), left, right, slot->result});
    return slot != nullptr;
  };
  for (int32_t i = 0; i < n; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    Scratch::Candidate top = heap.back();
    heap.pop_back();
    auto at = static_cast<int32_t>(top.order & 0xffffffffu);
    Scratch::Symbol& left = symbols[at];
    // Tokens only grow, so if the two ids are the same, they are the neighbours that were put on the heap.
    if (left.id != top.left || left.next < 0 || symbols[left.next].id != top.right) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = top.result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = at;
    if (candidate(left.previous)) std::push_heap(heap.begin(), heap.end());
    if (candidate(at)) std::push_heap(heap.begin(), heap.end());
  }
  for (int32_t at = 0; at >= 0; at = symbols[at].next) out.push_back(symbols[at].id);
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (word.empty()) return;
  if (word.size() == 1) return out.push_back(byte_ids_[static_cast<unsigned char>(word[0])]);
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    fail<DataError>("tokenizer", "a single word has {} bytes; at most 2^31 - 1 can be encoded", word.size());
  }
  bool cacheable = word.size() <= Scratch::Entry::kBytes;
  Scratch::Entry* entry = nullptr;
  if (cacheable) {
    entry = &scratch.cache[XXH3_64bits(word.data(), word.size()) & (Scratch::kEntries - 1)];
    if (entry->length == word.size() && std::memcmp(entry->bytes, word.data(), word.size()) == 0) {
      out.insert(out.end(), entry->ids, entry->ids + entry->count);
      return;
    }
  }
  size_t before = out.size();
  auto whole = whole_words_.empty() ? whole_words_.end() : whole_words_.find(word);
  if (whole != whole_words_.end()) {
    out.push_back(whole->second);
  } else {
    merge(word, scratch, out);
  }
  size_t count = out.size() - before;
  if (cacheable && count <= Scratch::Entry::kIds) {
    entry->length = static_cast<uint8_t>(word.size());
    entry->count = static_cast<uint8_t>(count);
    std::memcpy(entry->bytes, word.data(), word.size());
    std::copy(out.end() - static_cast<ptrdiff_t>(count), out.end(), entry->ids);
  }
}

}  // namespace ottava::tokenizer
