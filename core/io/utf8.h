#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ottava {

/// With which Windows begins UTF-8 files; no part of their text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// One code point, or one byte that belongs to no well-formed sequence (Unicode, table 3-7: neither overlong
/// forms nor surrogates nor values past U+10FFFF).
struct CodePoint {
  char32_t value = 0;
  uint32_t length = 1;  ///< bytes
  bool valid = true;
};

/// The code point at text[at]; at < text.size().
CodePoint code_point_at(std::string_view text, size_t at);

/// The end of the longest well-formed stretch that starts at `from`.
size_t well_formed_end(std::string_view text, size_t from);

/// Appends the UTF-8 of a scalar value.
void append_utf8(std::string& out, char32_t c);

}  // namespace ottava
