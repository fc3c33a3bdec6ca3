#include "core/data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <bitset>
#include <cstdlib>
#include <memory>

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

void append_composed(std::string& out, std::string_view well_formed) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(well_formed.data()),
                   static_cast<utf8proc_ssize_t>(well_formed.size()), &composed, kCompose);
  if (length < 0) fail<DataError>("tokenizer", "cannot normalise text: {}", utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(composed), length);
  std::free(composed);
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
