#include "core/data/tokenizer/unicode.h"

#include <fmt/ranges.h>

#include "core/data/tokenizer/byte_level.h"
#include "core/io/utf8.h"
#include "tests/support/catch.h"

using namespace ottava;
using namespace ottava::tokenizer;

namespace {

std::string nfc(std::string_view text) {
  std::string out;
  append_nfc(out, text);
  return out;
}

uint64_t fnv1a(uint64_t hash, std::string_view text) {
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

constexpr uint64_t kFnvStart = 0xcbf29ce484222325u;

}  // namespace

TEST_CASE("UTF-8: every code point there and back, everything else is told apart") {
  size_t scalars = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    CodePoint back = code_point_at(text, 0);
    scalars += back.valid && back.value == c && back.length == text.size();
  }
  CHECK(scalars == 0x110000 - 0x800);
  // Overlong forms, surrogates, beyond the last, cut short, lone continuation.
  for (std::string bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\x80", "\xe2\x82", "\xf0\x9f\x98", "\xc3"}) {
    INFO(fmt::format("{:02x}", fmt::join(bad, " ")));
    CHECK_FALSE(code_point_at(bad, 0).valid);
    CHECK(well_formed_end("0123456789" + bad + "z", 0) == 10);
  }
  CHECK(well_formed_end("0123456789\u00e9\u4e00\U0001f600", 3) == 19);
}

namespace {

/// Blocks that hold, or may hold, characters of NFC that are younger than Unicode 14.
bool is_young(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kYoung[] = {
      {0x890, 0x89F},     {0x1AB0, 0x1AFF},   {0x105C0, 0x105FF}, {0x10D40, 0x10D8F}, {0x10EC0, 0x10EFF},
      {0x11380, 0x113FF}, {0x11B60, 0x11B7F}, {0x11F00, 0x11F5F}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F},
      {0x1E030, 0x1E08F}, {0x1E4D0, 0x1E4FF}, {0x1E5D0, 0x1E5FF}, {0x1E6C0, 0x1E6FF}};
  return std::ranges::any_of(kYoung, [c](auto& block) { return c >= block.first && c <= block.second; });
}

}  // namespace

// The numbers come from Python 3.11 (Unicode 14), with f(h, s) = FNV-1a over the UTF-8 of s, where s is
//   unicodedata.normalize("NFC", chr(c)) of every scalar that is not young;
//   the same of "a" + chr(c) + "\u0301\u0323"; the same of chr(c) * 2 + "\u1161\u11a8"
TEST_CASE("NFC of every code point is Python's") {
  uint64_t alone = kFnvStart, marked = kFnvStart, hangul = kFnvStart;
  size_t wrong_quick = 0, slow = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || is_young(c)) continue;
    std::string text;
    append_utf8(text, c);
    alone = fnv1a(alone, nfc(text));
    wrong_quick += is_nfc_quickly(text) && nfc(text) != text;
    slow += !is_nfc_quickly(text);
    marked = fnv1a(marked, nfc("a" + text + "\u0301\u0323"));
    hangul = fnv1a(hangul, nfc(text + text + "\u1161\u11a8"));
  }
  CHECK(wrong_quick == 0);
  CHECK(slow == 2062);
  CHECK(alone == 0x9819a2056e62a139u);
  CHECK(marked == 0x73be6ae82b327824u);
  CHECK(hangul == 0x8e2fc3021588aff3u);
}

TEST_CASE("NFC knows the characters of Unicode 15") {
  // Combining classes 230 (U+1E08F) and 220: the lower goes first.
  CHECK(nfc("q\U0001E08F\u0323") == "q\u0323\U0001E08F");
}

TEST_CASE("NFC orders a long run of marks as fast as a short one") {
  constexpr int kMarks = 200'000;
  std::string text = "e", ordered = "\u1eb9";  // e with the first dot below
  for (int i = 0; i < kMarks; ++i) text += "\u0301\u0323";
  for (int i = 1; i < kMarks; ++i) ordered += "\u0323";
  for (int i = 0; i < kMarks; ++i) ordered += "\u0301";
  CHECK((nfc(text + "x") == ordered + "x"));
  std::string tibetan;
  for (int i = 0; i < kMarks; ++i) tibetan += "\u0f73";  // no mark, but two of them
  CHECK(nfc(tibetan).starts_with("\u0f71\u0f71"));
}

TEST_CASE("NFC keeps what is not UTF-8") {
  CHECK(nfc("e\u0301\xff"
            "e\u0301\xc3") == "\u00e9\xff\u00e9\xc3");
  CHECK(is_nfc_quickly("plain text, \u00e9\u4e00\uac00\xff"));
  CHECK_FALSE(is_nfc_quickly("e\u0301"));
  CHECK_FALSE(is_nfc_quickly("\u212b"));
}

TEST_CASE("white space and word characters") {
  for (char32_t c : {U' ', U'\t', U'\n', U'\u0085', U'\u00a0', U'\u1680', U'\u2003', U'\u2028', U'\u3000'}) {
    CHECK(is_white_space(c));
  }
  for (char32_t c : {U'a', U'_', U'\u180e', U'\u200b', U'\ufeff'}) CHECK_FALSE(is_white_space(c));
  for (char32_t c :
       {U'a', U'_', U'7', U'\u00e9', U'\u0301', U'\u0661', U'\u2167', U'\u4e00', U'\u24b6', U'\u200d'}) {
    CHECK(is_word_character(c));
  }
  for (char32_t c : {U' ', U'-', U'\u00b2', U'\u2014', U'\U0001f600'}) CHECK_FALSE(is_word_character(c));
}

TEST_CASE("byte-level stand-ins there and back") {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  CHECK(from_byte_level(to_byte_level(all)) == all);
  CHECK(to_byte_level(" a\n\xc3") == "\u0120a\u010a\u00c3");
  CHECK_FALSE(from_byte_level("a b"));
  CHECK_FALSE(from_byte_level("\u4e00"));
  CHECK_FALSE(from_byte_level("\u0144"));  // one past the last stand-in
  CHECK(from_byte_level("\u0143") == "\xad");
}

TEST_CASE("text is stripped of what Python's str.strip() takes away") {
  CHECK(stripped("") == "");
  CHECK(stripped(" \t\n\u00a0\u2003") == "");
  CHECK(stripped("\u3000 a b\u00a0\x1f\x1c") == "a b");
  CHECK(stripped("\x80 a \xff") == "\x80 a \xff");      // what is no UTF-8 is no space
  CHECK(stripped("\u200ba\u200b") == "\u200ba\u200b");  // zero-width: no space
  CHECK(stripped_at_end("\u3000a\u3000\v") == "\u3000a");
}
