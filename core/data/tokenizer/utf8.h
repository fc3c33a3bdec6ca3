#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// One code point, or one byte that belongs to no well-formed sequence (Unicode 15, table 3-7).
struct CodePoint {
  char32_t value = 0;
  uint32_t length = 1;
  bool valid = true;
};

/// The code point at text[at]; at < text.size().
inline CodePoint code_point_at(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned lead = byte(at);
  if (lead < 0x80) return {lead, 1, true};
  CodePoint ill{lead, 1, false};
  uint32_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < length) return ill;
  // The second byte's range excludes overlong forms, surrogates and values past U+10FFFF.
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(at + 1) < low || byte(at + 1) > high) return ill;
  char32_t value = lead & (0x7Fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return ill;
    value = value << 6 | (byte(at + i) & 0x3F);
  }
  return {value, length, true};
}

/// The end of the longest well-formed stretch that starts at `from`.
inline size_t well_formed_end(std::string_view text, size_t from) {
  size_t at = from;
  while (at < text.size()) {
    uint64_t eight;
    if (text.size() - at >= 8 &&
        (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    CodePoint c = code_point_at(text, at);
    if (!c.valid) return at;
    at += c.length;
  }
  return at;
}

inline void append_utf8(std::string& out, char32_t c) {
  auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

}  // namespace ottava::tokenizer
