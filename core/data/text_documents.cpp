#include "core/data/text_documents.h"

#include <algorithm>

namespace ottava::data {
namespace {

constexpr size_t kSeparatorSearch = 256 << 10, kBreakSearch = 16 << 10;
constexpr std::string_view kBlank = " \t\r\n\f\v";

bool blank(std::string_view text) { return text.find_first_not_of(kBlank) == std::string_view::npos; }

// First byte at or after `at` that does not continue a UTF-8 character, or the end. At most three bytes
// continue one; where more seem to, it is not UTF-8 and any place will do.
size_t character_start(std::string_view bytes, size_t at) {
  size_t start = at;
  while (start < bytes.size() && (static_cast<unsigned char>(bytes[start]) & 0xc0) == 0x80) {
    if (++start > at + 3) return at;
  }
  return start;
}

size_t cut_text(std::string_view bytes, bool ended) {
  // Callers have different amounts of what follows, so all look at the same length.
  std::string_view seen = bytes.substr(0, kSeparatorSearch);
  if (size_t at = seen.find(kTextSeparator); at != std::string_view::npos) {
    return std::min(seen.find_first_not_of("\r\n", at + kTextSeparator.size()), seen.size());
  }
  if (ended && bytes.size() <= kSeparatorSearch) return bytes.size();
  std::string_view near = bytes.substr(0, kBreakSearch);
  for (std::string_view stop : {"\n\n", "\n", " "}) {
    if (size_t at = near.find(stop); at != std::string_view::npos) return at + stop.size();
  }
  return character_start(bytes, 0);
}

// Length of the first piece of a stretch that is longer than `limit`.
size_t piece(std::string_view text, size_t limit) {
  std::string_view head = text.substr(0, limit);
  for (std::string_view stop : {"\n\n", "\n", " "}) {
    size_t at = head.rfind(stop);
    if (at != std::string_view::npos && at + stop.size() > limit / 2) return at + stop.size();
  }
  return std::max<size_t>(character_start(text, limit), 1);
}

}  // namespace

std::optional<size_t> find_cut(Format format, std::string_view bytes, bool ended, size_t looked) {
  if (format == Format::json_lines) {
    size_t at = bytes.find('\n', looked);
    if (at != std::string_view::npos) return at + 1;
    return ended ? std::optional(bytes.size()) : std::nullopt;
  }
  if (!ended && bytes.size() < kSeparatorSearch) return std::nullopt;
  return cut_text(bytes, ended);
}

void split_documents(Format format, std::string_view bytes, size_t max_text_bytes,
                     const std::function<void(size_t begin, size_t end)>& visit) {
  size_t at = 0;
  bool after_separator = false;
  // Separators say where documents end, so there is no other end between them.
  const bool has_separators = format == Format::text && bytes.find(kTextSeparator) != std::string_view::npos;
  while (at < bytes.size()) {
    std::string_view stop = format == Format::json_lines ? "\n" : kTextSeparator;
    size_t found = bytes.find(stop, at), end = std::min(found, bytes.size());
    size_t next = found == std::string_view::npos ? bytes.size() : found + stop.size(), begin = at;
    if (format == Format::text) {
      if (after_separator) begin = std::min(bytes.find_first_not_of("\r\n", begin), end);
      after_separator = found != std::string_view::npos;
      if (after_separator) {
        while (end > begin && (bytes[end - 1] == '\n' || bytes[end - 1] == '\r')) --end;
      }
      while (!has_separators && end - begin > max_text_bytes) {
        size_t length = piece(bytes.substr(begin, end - begin), max_text_bytes);
        if (!blank(bytes.substr(begin, length))) visit(begin, begin + length);
        begin += length;
      }
    }
    if (!blank(bytes.substr(begin, end - begin))) visit(begin, end);
    at = next;
  }
}

}  // namespace ottava::data
