#include "core/io/utf8.h"

#include <utf8proc.h>

#include <cstring>

namespace ottava {

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
  if (bytes[0] < 0x80) return {bytes[0], 1, true};
  utf8proc_int32_t value = 0;
  const utf8proc_ssize_t length =
      utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &value);
  if (length < 0) return {bytes[0], 1, false};
  return {static_cast<char32_t>(value), static_cast<uint32_t>(length), true};
}

size_t well_formed_end(std::string_view text, size_t from) {
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

void append_utf8(std::string& out, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), length);
}

}  // namespace ottava
