#include "core/data/tokenizer/byte_level.h"

#include "core/io/utf8.h"

namespace ottava::tokenizer {
namespace {

bool stands_for_itself(char32_t c) {
  return (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

constexpr size_t kStandIns = 0x100 + 68;

std::array<int16_t, kStandIns> make_inverse() {
  std::array<int16_t, kStandIns> inverse;
  inverse.fill(-1);
  for (size_t b = 0; b < 256; ++b) inverse[byte_level_alphabet()[b]] = static_cast<int16_t>(b);
  return inverse;
}

}  // namespace

const std::array<char32_t, 256>& byte_level_alphabet() {
  static const std::array<char32_t, 256> alphabet = [] {
    std::array<char32_t, 256> a;
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) a[b] = stands_for_itself(b) ? b : next++;
    return a;
  }();
  return alphabet;
}

std::string to_byte_level(std::string_view bytes) {
  std::string key;
  for (char b : bytes) append_utf8(key, byte_level_alphabet()[static_cast<unsigned char>(b)]);
  return key;
}

std::optional<std::string> from_byte_level(std::string_view key) {
  static const std::array<int16_t, kStandIns> inverse = make_inverse();
  std::string bytes;
  for (size_t at = 0; at < key.size();) {
    CodePoint c = code_point_at(key, at);
    if (!c.valid || c.value >= kStandIns || inverse[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(inverse[c.value]));
    at += c.length;
  }
  return bytes;
}

}  // namespace ottava::tokenizer
