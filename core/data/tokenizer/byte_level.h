#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// GPT-2's printable stand-ins for bytes: ! to ~, U+00A1 to U+00AC and U+00AE to U+00FF stand for themselves;
/// the other 68 bytes, in order, become U+0100 and so on (space is U+0120).
const std::array<char32_t, 256>& byte_level_alphabet();

/// The stand-ins of `bytes`, as UTF-8.
std::string to_byte_level(std::string_view bytes);

/// Back to bytes; nothing if a character is not a stand-in.
std::optional<std::string> from_byte_level(std::string_view key);

}  // namespace ottava::tokenizer
