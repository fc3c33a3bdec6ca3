#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/data/tokenizer/definition.h"
#include "core/data/tokenizer/pattern.h"

namespace ottava::tokenizer {

/// Finds added tokens in text: leftmost first, the longest of those that start there (HF's rule). The text is
/// scanned for bytes that can start a token; from each a trie is walked, so ordinary text costs one table
/// look-up per byte.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);
  bool empty() const { return tokens_.empty(); }

  /// A piece of the text; id -1: ordinary text.
  struct Piece {
    std::string_view text;
    int32_t id;
  };
  enum class Specials { found, left_as_text };
  void split(std::string_view text, Specials specials, std::vector<Piece>& out) const;

 private:
  struct Node {
    int32_t token = -1;        ///< index of the token that ends here
    int32_t first_child = -1;  ///< children are a list sorted by nothing: they are few
    int32_t sibling = -1;
    unsigned char byte = 0;
  };
  int32_t child(int32_t node, unsigned char byte) const;
  void insert(std::string_view content, int32_t token);
  int32_t longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<int32_t, 256> roots_;
  std::array<bool, 256> starts_{};
};

}  // namespace ottava::tokenizer
