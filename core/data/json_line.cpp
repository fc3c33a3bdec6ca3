#include "core/data/json_line.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/contains.h"
#include "core/data/chat/conversation.h"
#include "core/io/array_of_lines.h"
#include "core/io/utf8.h"
#include "core/text/listed.h"
#include "core/text/number.h"

namespace ottava::data {
namespace {

constexpr char kPlaceholder = 0x7f;  // DEL: one byte, allowed in JSON strings, rare in text

/// A line without what the library refuses and web text has, of the same length, so that columns stay.
/// Escaped halves of surrogate pairs are no characters and become U+FFFD. A byte that is not UTF-8 is kept:
/// a placeholder stands for it, and `originals` has what all placeholders of the line stand for, in order.
struct Repaired {
  std::string line, originals;
};

/// The code of `\uXXXX` at `at`; nothing if there is something else.
std::optional<unsigned> escaped_code(std::string_view line, size_t at) {
  if (line.size() < at + 6 || line[at] != '\\' || line[at + 1] != 'u') return {};
  return parse_number<unsigned>(line.substr(at + 2, 4), 16);
}

bool needs_repair(std::string_view line) {
  return contains_text(line, "\\ud") || contains_text(line, "\\uD") || well_formed_end(line, 0) < line.size();
}

Repaired repair(std::string_view line) {
  Repaired out{std::string(line), {}};
  for (size_t at = 0; at < line.size();) {
    if (line[at] == '\\') {
      const std::optional<unsigned> code = escaped_code(line, at);
      if (code == kPlaceholder) out.originals += kPlaceholder;
      const bool is_high = code && *code >> 10 == 0xd800 >> 10, is_low = code && *code >> 10 == 0xdc00 >> 10;
      const bool is_pair = is_high && escaped_code(line, at + 6).value_or(0) >> 10 == 0xdc00 >> 10;
      if ((is_high || is_low) && !is_pair) out.line.replace(at + 2, 4, "fffd");
      at += is_pair ? 12 : code ? 6 : 2;
      continue;
    }
    const CodePoint c = code_point_at(line, at);
    if (!c.valid) out.line[at] = kPlaceholder;
    if (!c.valid || line[at] == kPlaceholder) out.originals += line[at];
    at += c.length;
  }
  return out;
}

/// Keeps the wanted string of the library's events and builds nothing else.
class Finder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Finder(std::string_view wanted, std::string_view originals) : wanted_(wanted), originals_(originals) {}

  enum class Found { nothing, string, other };
  Found found = Found::nothing;
  std::string text;
  std::optional<JsonProblem> problem;
  bool lists_keys = false;  ///< for a message: otherwise it costs every line
  std::vector<std::string> keys;

  bool null() override { return begin(Found::other); }
  bool boolean(bool) override { return begin(Found::other); }
  bool number_integer(number_integer_t) override { return begin(Found::other); }
  bool number_unsigned(number_unsigned_t) override { return begin(Found::other); }
  bool number_float(number_float_t, const string_t&) override { return begin(Found::other); }
  bool binary(binary_t&) override { return begin(Found::other); }
  bool string(string_t& value) override {
    const bool is_wanted = is_wanted_;
    if (!begin(Found::string)) return false;
    restore(value);
    if (is_wanted) text = std::move(value);
    return true;
  }
  bool start_object(size_t) override { return (depth_ == 0 || begin(Found::other)) && ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(size_t) override {
    if (begin(Found::other)) return ++depth_ > 0;
    problem->what = kArrayOfLines;
    return false;
  }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& name) override {
    restore(name);
    is_wanted_ = depth_ == 1 && name == wanted_;
    if (lists_keys && depth_ == 1) keys.push_back(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error while parsing value -
    // invalid literal; last read: '...'; expected ...", where the last read may be megabytes.
    std::string_view what = error.what();
    for (std::string_view end : {"] ", "column ", ": "}) {
      if (const size_t at = what.find(end); at != std::string_view::npos) what.remove_prefix(at + end.size());
    }
    problem = {position, std::string(what.substr(0, what.find("; last read: ")))};
    if (contains_text(what, "unexpected end of input"))
      problem->what +=
          ": the line ends within its object; one that goes on in the next is not JSON lines (jq "
          "-c . FILE writes each on one line)";
    return false;
  }

 private:
  /// Notes any value; false if it is not inside an object.
  bool begin(Found kind) {
    if (depth_ == 0) problem = {1, "expected a JSON object '{...}'"};
    if (std::exchange(is_wanted_, false)) found = kind;
    return depth_ > 0;
  }
  void restore(std::string& value) {
    if (originals_.empty()) return;
    for (char& c : value) {
      if (c == kPlaceholder) c = originals_[next_original_++];
    }
  }

  std::string_view wanted_, originals_;
  size_t next_original_ = 0;
  int depth_ = 0;
  bool is_wanted_ = false;  ///< the value that comes next
};

std::string no_key(std::string_view line, std::string_view key, std::string_view originals) {
  constexpr size_t kShown = 8, kShownBytes = 64;
  Finder finder(key, originals);
  finder.lists_keys = true;
  nlohmann::json::sax_parse(line.data(), line.data() + line.size(), &finder);
  if (finder.keys.empty()) return fmt::format("the object is empty, expected the key \"{}\"", key);
  const auto quoted = [](const std::string& k) { return fmt::format("\"{}\"", k.substr(0, kShownBytes)); };
  const std::string names = listed(finder.keys, quoted, kShown);
  for (const std::string& name : finder.keys)
    if (const std::optional<ChatFormat> chat = chat_format_with(name))
      return fmt::format(
          "the object has no key \"{}\", only {}: if the lines are conversations, set training.format (or "
          "format of the source in training.mixture or of the set in validation.datasets, or --format of "
          "data inspect) to {}; tokenizer train, data prepare, eval --text and init read only plain texts",
          key, names, name_of(*chat));
  return fmt::format(
      "the object has no key \"{}\", only {}: set training.text_key (or text_key of the source or validation "
      "set, or --text-key of init, data, eval, generate and tokenizer) to the key that holds the text",
      key, names);
}

}  // namespace

std::optional<JsonProblem> append_json_string(std::string_view line, std::string_view key, std::string& out) {
  // The library takes a zero byte outside a string as the end.
  if (const size_t zero = line.find('\0'); zero != std::string_view::npos)
    return JsonProblem{zero + 1, "a zero byte, which JSON cannot contain: the file has a hole or is damaged"};
  Repaired repaired;
  if (needs_repair(line)) {
    repaired = repair(line);
    line = repaired.line;
  }
  Finder finder(key, repaired.originals);
  nlohmann::json::sax_parse(line.data(), line.data() + line.size(), &finder);
  if (finder.problem) return finder.problem;
  if (finder.found == Finder::Found::nothing)
    return JsonProblem{line.size() + 1, no_key(line, key, repaired.originals)};
  if (finder.found == Finder::Found::other)
    return JsonProblem{line.size() + 1, fmt::format("the value of \"{}\" is not a string", key)};
  out += finder.text;
  return std::nullopt;
}

}  // namespace ottava::data
