#include "core/data/tokenizer/added_token_matcher.h"

#include <algorithm>

#include "core/data/tokenizer/unicode.h"
#include "core/io/utf8.h"

namespace ottava::tokenizer {
namespace {

size_t previous_start(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return code_point_at(text, at).length == end - at ? at : end - 1;
}

/// Where the white space that ends at `end` begins.
size_t space_before(std::string_view text, size_t end) {
  while (end > 0) {
    size_t at = previous_start(text, end);
    CodePoint c = code_point_at(text, at);
    if (!c.valid || !is_white_space(c.value)) break;
    end = at;
  }
  return end;
}

size_t space_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    CodePoint c = code_point_at(text, at);
    if (!c.valid || !is_white_space(c.value)) break;
    at += c.length;
  }
  return at;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    CodePoint c = code_point_at(text, previous_start(text, begin));
    if (c.valid && is_word_character(c.value)) return true;
  }
  if (end < text.size()) {
    CodePoint c = code_point_at(text, end);
    if (c.valid && is_word_character(c.value)) return true;
  }
  return false;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  roots_.fill(-1);
  for (size_t i = 0; i < tokens_.size(); ++i) insert(tokens_[i].content, static_cast<int32_t>(i));
}

int32_t AddedTokenMatcher::child(int32_t node, unsigned char byte) const {
  for (int32_t c = nodes_[node].first_child; c >= 0; c = nodes_[c].sibling) {
    if (nodes_[c].byte == byte) return c;
  }
  return -1;
}

void AddedTokenMatcher::insert(std::string_view content, int32_t token) {
  int32_t node = 0;
  for (char letter : content) {
    auto byte = static_cast<unsigned char>(letter);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({-1, -1, nodes_[node].first_child, byte});
      nodes_[node].first_child = next;
      if (node == 0) roots_[byte] = next, starts_[byte] = true;
    }
    node = next;
  }
  if (nodes_[node].token < 0) nodes_[node].token = token;
}

int32_t AddedTokenMatcher::longest_at(std::string_view text, size_t at) const {
  int32_t best = -1;
  for (int32_t node = roots_[static_cast<unsigned char>(text[at])]; node >= 0;) {
    if (nodes_[node].token >= 0) best = nodes_[node].token;
    if (++at == text.size()) break;
    node = child(node, static_cast<unsigned char>(text[at]));
  }
  return best;
}

void AddedTokenMatcher::split(std::string_view text, Specials specials, std::vector<Piece>& out) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !empty();) {
    while (at < text.size() && !starts_[static_cast<unsigned char>(text[at])]) ++at;
    if (at == text.size()) break;
    int32_t index = longest_at(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = at, end = at + token.content.size();
    at = end;
    // A match that is turned down still hides the tokens inside it, as in HF.
    if ((token.special && specials == Specials::left_as_text) ||
        (token.single_word && touches_word(text, begin, end)))
      continue;
    if (token.lstrip) begin = std::max(space_before(text, begin), done);
    if (token.rstrip) end = space_after(text, end);
    // A token of white space that another has taken along as a whole is not there any more, as in HF.
    if (end <= begin) continue;
    if (done < begin) out.push_back({text.substr(done, begin - done), -1});
    out.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({text.substr(done), -1});
}

}  // namespace ottava::tokenizer
