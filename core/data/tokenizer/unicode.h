#pragma once

#include <string>
#include <string_view>

namespace ottava::tokenizer {

/// Properties by Unicode 14 (Python 3.11's tables; unicode_tables.inc is made by
/// scripts/reference/make_unicode_tables.py).
bool is_white_space(char32_t c);
/// Alphabetic, mark, decimal number, connector punctuation or join control: \w of HF's engine.
bool is_word_character(char32_t c);

/// Normalization Form C (UAX #15). Bytes that are not UTF-8 stay as they are and part what is before from
/// what is after. Text that is in this form already (all of ASCII) is told apart without a copy.
bool is_nfc_quickly(std::string_view text);
void append_nfc(std::string& out, std::string_view text);

}  // namespace ottava::tokenizer
