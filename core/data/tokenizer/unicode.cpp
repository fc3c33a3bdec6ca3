#include "core/data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/io/utf8.h"

namespace ottava::tokenizer {
namespace {

// Here, because the pkg-config module of 2.8 says 2.6.
static_assert(UTF8PROC_VERSION_MAJOR > 2 || UTF8PROC_VERSION_MINOR >= 8,
              "utf8proc 2.8 or later is needed: Unicode 15");

constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
constexpr utf8proc_int32_t kCodePoints = 0x110000;
using CodePoints = std::bitset<kCodePoints>;

/// Code points that normalised text may have next to any others: they are neither decomposed nor replaced,
/// are no marks that change places, and are not absorbed by a character before them.
std::unique_ptr<const CodePoints> find_inert() {
  auto inert = std::make_unique<CodePoints>();
  inert->set();
  for (utf8proc_int32_t c = 0; c < kCodePoints; ++c) {
    const size_t at = c;
    if (utf8proc_get_property(c)->combining_class != 0) inert->reset(at);
    utf8proc_int32_t parts[8];
    int last_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, 8, UTF8PROC_DECOMPOSE, &last_class);
    if (count < 1 || (count == 1 && parts[0] == c)) continue;
    const size_t second = parts[count - 1];
    const bool composes = utf8proc_normalize_utf32(parts, count, kCompose) == 1 && parts[0] == c;
    inert->reset(composes ? second : at);
  }
  return inert;
}

// What utf8proc_map() does. Its time grows with the square of a run of marks, of which a text may have many.
void append_composed(std::string& out, std::string_view well_formed) {
  const auto class_of = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  std::vector<utf8proc_int32_t> text;
  text.reserve(well_formed.size());
  std::ptrdiff_t marks = 0;  // where the last run of marks begins
  const auto order_marks = [&] {
    if (std::ssize(text) - marks > 1)
      std::ranges::stable_sort(text.begin() + marks, text.end(), {}, class_of);
  };
  for (size_t at = 0; at < well_formed.size();) {
    const CodePoint c = code_point_at(well_formed, at);
    at += c.length;
    utf8proc_int32_t parts[8];
    int last_class = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts, 8, kCompose, &last_class);
    if (count < 0) fail<DataError>("tokenizer", "cannot normalise text: {}", utf8proc_errmsg(count));
    for (const utf8proc_int32_t part : std::span(parts, static_cast<size_t>(count))) {
      const bool is_mark = class_of(part) != 0;
      if (!is_mark) order_marks();
      text.push_back(part);
      if (!is_mark) marks = std::ssize(text);
    }
  }
  order_marks();
  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()), kCompose);
  if (length < 0) fail<DataError>("tokenizer", "cannot normalise text: {}", utf8proc_errmsg(length));
  for (const utf8proc_int32_t c : std::span(text).first(static_cast<size_t>(length)))
    append_utf8(out, static_cast<char32_t>(c));
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

}  // namespace

std::string_view stripped(std::string_view text) {
  text = stripped_at_end(text);
  while (!text.empty()) {
    const CodePoint c = code_point_at(text, 0);
    if (!c.valid || !is_python_space(c.value)) break;
    text.remove_prefix(c.length);
  }
  return text;
}

std::string_view stripped_at_end(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.length;
    if (!c.valid || !is_python_space(c.value)) end = at;
  }
  return text.substr(0, end);
}

std::string capitalised(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const auto value = static_cast<utf8proc_int32_t>(c.value);
    if (c.valid) {
      append_utf8(out, static_cast<char32_t>(at == 0 ? utf8proc_totitle(value) : utf8proc_tolower(value)));
    } else {
      out += text[at];
    }
    at += c.length;
  }
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // join controls; circled and squared letters, which are symbols and Alphabetic
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

bool is_nfc_quickly(std::string_view text) {
  static const std::unique_ptr<const CodePoints> inert = find_inert();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.valid && !inert->test(c.value)) return false;
    at += c.length;
  }
  return true;
}

std::string_view in_nfc(std::string_view text, std::string& storage) {
  if (is_nfc_quickly(text)) return text;
  storage.clear();
  append_nfc(storage, text);
  return storage;
}

void append_nfc(std::string& out, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = well_formed_end(text, at);
    if (end > at) append_composed(out, text.substr(at, end - at));
    for (at = end; at < text.size() && !code_point_at(text, at).valid; ++at) out.push_back(text[at]);
  }
}

}  // namespace ottava::tokenizer
