#pragma once

#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// Python's str.capitalize(): the first character in title case, the others in lower case; but characters
/// that would become several stay as they are, and a capital sigma is nowhere a final one.
std::string capitalised(std::string_view text);

/// Python's str.strip() and str.rstrip(): the text without white space, or separators U+001C to U+001F, at
/// both ends or at the end.
std::string_view stripped(std::string_view text);
std::string_view stripped_at_end(std::string_view text);

/// The property White_Space.
bool is_white_space(char32_t c);
/// Alphabetic, mark, decimal number, connector punctuation or join control: \w of HF's engine.
bool is_word_character(char32_t c);

/// Normalization Form C (UAX #15), by utf8proc's tables (Unicode 15 or later). Bytes that are not UTF-8 stay
/// as they are and separate what is before from what is after. Text that is in this form already (all ASCII
/// is) is mostly recognised without a copy: is_nfc_quickly() may return false for it, but never true for
/// other text. append_nfc() and in_nfc() throw DataError where utf8proc cannot normalise, for lack of memory.
bool is_nfc_quickly(std::string_view text);
void append_nfc(std::string& out, std::string_view text);
/// The text in this form: `text` itself, or a view of `storage`, which then holds it.
std::string_view in_nfc(std::string_view text, std::string& storage);

}  // namespace ottava::tokenizer
