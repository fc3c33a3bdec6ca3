#include "core/data/tokenizer/unicode.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "core/data/tokenizer/utf8.h"

namespace ottava::tokenizer {
namespace {

struct Range {
  char32_t first, last;
};
struct ClassRange {
  char32_t first, last;
  uint8_t combining_class;
};
struct Decomposition {
  char32_t composite, first, second;  ///< second 0: a singleton
  bool composes;                      ///< false: excluded from composition
};

#include "core/data/tokenizer/unicode_tables.inc"

// Hangul syllables are composed by arithmetic (UAX #15, section 3.12 of the standard).
constexpr char32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

// Below it nothing decomposes differently, combines or is reordered.
constexpr char32_t kFirstInteresting = 0x300;

template <class Row, size_t N>
const Row* range_of(const Row (&table)[N], char32_t c) {
  const Row* row = std::upper_bound(std::begin(table), std::end(table), c,
                                    [](char32_t value, const Row& r) { return value < r.first; });
  return row != std::begin(table) && c <= row[-1].last ? row - 1 : nullptr;
}

uint8_t combining_class(char32_t c) {
  const ClassRange* row = c < kFirstInteresting ? nullptr : range_of(kCombiningClasses, c);
  return row ? row->combining_class : 0;
}

const Decomposition* decomposition_of(char32_t c) {
  const Decomposition* row =
      std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                       [](const Decomposition& d, char32_t value) { return d.composite < value; });
  return row != std::end(kDecompositions) && row->composite == c ? row : nullptr;
}

struct Composition {
  uint64_t pair;
  char32_t composite;
};

struct Compositions {
  std::vector<Composition> by_pair;
  std::vector<char32_t> seconds;  ///< sorted: what can be absorbed by the character before it
  Compositions() {
    for (const Decomposition& d : kDecompositions) {
      if (!d.composes) continue;
      by_pair.push_back({uint64_t{d.first} << 32 | d.second, d.composite});
      seconds.push_back(d.second);
    }
    std::sort(by_pair.begin(), by_pair.end(), [](auto& a, auto& b) { return a.pair < b.pair; });
    std::sort(seconds.begin(), seconds.end());
    seconds.erase(std::unique(seconds.begin(), seconds.end()), seconds.end());
  }
};

const Compositions& compositions() {
  static const Compositions table;
  return table;
}

/// The composite of two characters, 0 if there is none.
char32_t compose(char32_t a, char32_t b) {
  if (a >= kLead && a < kLead + kLeads && b >= kVowel && b < kVowel + kVowels) {
    return kSyllable + ((a - kLead) * kVowels + (b - kVowel)) * kTails;
  }
  bool open_syllable = a >= kSyllable && a < kSyllable + kSyllables && (a - kSyllable) % kTails == 0;
  if (open_syllable && b > kTail && b < kTail + kTails) return a + (b - kTail);
  const auto& table = compositions().by_pair;
  uint64_t pair = uint64_t{a} << 32 | b;
  auto row = std::lower_bound(table.begin(), table.end(), pair,
                              [](const Composition& c, uint64_t value) { return c.pair < value; });
  return row != table.end() && row->pair == pair ? row->composite : 0;
}

struct Character {
  char32_t value;
  uint8_t combining_class;
};

void decompose(std::vector<Character>& out, char32_t c) {
  if (c >= kSyllable && c < kSyllable + kSyllables) {
    char32_t index = c - kSyllable;
    out.push_back({kLead + index / (kVowels * kTails), 0});
    out.push_back({kVowel + index % (kVowels * kTails) / kTails, 0});
    if (index % kTails) out.push_back({kTail + index % kTails, 0});
    return;
  }
  if (const Decomposition* d = c < 0xC0 ? nullptr : decomposition_of(c)) {
    decompose(out, d->first);
    if (d->second) decompose(out, d->second);
    return;
  }
  out.push_back({c, combining_class(c)});
}

void reorder_marks(std::vector<Character>& text) {
  for (auto at = text.begin(); at != text.end();) {
    if (at->combining_class == 0) {
      ++at;
      continue;
    }
    auto end = std::find_if(at, text.end(), [](const Character& c) { return c.combining_class == 0; });
    std::stable_sort(at, end, [](auto& a, auto& b) { return a.combining_class < b.combining_class; });
    at = end;
  }
}

void compose_and_append(std::string& out, std::vector<Character>& text) {
  size_t kept = 0;
  ptrdiff_t starter = -1;
  for (const Character c : text) {
    // Blocked: something between the starter and c has c's class or a higher one.
    bool adjacent = starter >= 0 && static_cast<size_t>(starter) + 1 == kept;
    bool blocked = starter < 0 || (!adjacent && text[kept - 1].combining_class >= c.combining_class);
    char32_t composite = blocked ? 0 : compose(text[starter].value, c.value);
    if (composite) {
      text[starter].value = composite;
      continue;
    }
    if (c.combining_class == 0) starter = static_cast<ptrdiff_t>(kept);
    text[kept++] = c;
  }
  for (size_t i = 0; i < kept; ++i) append_utf8(out, text[i].value);
}

/// True where a character by itself can only be part of normalised text.
bool surely_nfc(char32_t c) {
  if (c < kFirstInteresting) return true;
  if (c >= kSyllable && c < kSyllable + kSyllables) return true;
  if ((c >= kVowel && c < kVowel + kVowels) || (c > kTail && c < kTail + kTails)) return false;
  if (combining_class(c) != 0) return false;
  const auto& seconds = compositions().seconds;
  if (std::binary_search(seconds.begin(), seconds.end(), c)) return false;
  const Decomposition* d = decomposition_of(c);
  return !d || d->composes;
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t c) { return range_of(kWordRanges, c) != nullptr; }

bool is_nfc_quickly(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    CodePoint c = code_point_at(text, at);
    if (c.valid && !surely_nfc(c.value)) return false;
    at += c.length;
  }
  return true;
}

void append_nfc(std::string& out, std::string_view text) {
  std::vector<Character> characters;
  for (size_t at = 0; at < text.size();) {
    characters.clear();
    size_t end = well_formed_end(text, at);
    while (at < end) {
      CodePoint c = code_point_at(text, at);
      decompose(characters, c.value);
      at += c.length;
    }
    reorder_marks(characters);
    compose_and_append(out, characters);
    while (at < text.size() && !code_point_at(text, at).valid) out.push_back(text[at++]);
  }
}

}  // namespace ottava::tokenizer
