#include "core/data/json_line.h"

#include <cstdint>
#include <utility>

#include "core/error.h"

namespace ottava::data {
namespace {

constexpr int kMaxDepth = 256;

// A line is parsed once, forwards, and only the wanted string is kept: a general parser would build every
// value.
class Parser {
 public:
  Parser(std::string_view line, std::string_view key) : line_(line), key_(key) {}

  std::string parse() {
    skip_space();
    if (!object(0)) problem("expected a JSON object '{...}'");
    skip_space();
    if (at_ != line_.size()) problem("unexpected text after the object");
    if (found_ == Found::nothing) problem(fmt::format("the object has no key \"{}\"", key_));
    if (found_ == Found::other) problem(fmt::format("the value of \"{}\" is not a string", key_));
    return std::move(text_);
  }

 private:
  enum class Found { nothing, string, other };

  [[noreturn]] void problem(std::string what) const { throw JsonProblem{at_ + 1, std::move(what)}; }
  char peek() const { return at_ < line_.size() ? line_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (at_ < line_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n')) ++at_;
  }

  bool object(int depth) {
    if (!take('{')) return false;
    skip_space();
    if (take('}')) return true;
    std::string name;
    do {
      skip_space();
      name.clear();
      if (!string(depth == 0 ? &name : nullptr)) problem("expected a key in double quotes");
      skip_space();
      if (!take(':')) problem("expected ':' after a key");
      skip_space();
      if (depth == 0 && name == key_) {
        text_.clear();
        found_ = string(&text_) ? Found::string : Found::other;
        if (found_ == Found::other) value(depth + 1);
      } else {
        value(depth + 1);
      }
      skip_space();
    } while (take(','));
    if (!take('}')) problem("expected ',' or '}' in an object");
    return true;
  }
  void array(int depth) {
    skip_space();
    if (take(']')) return;
    do {
      skip_space();
      value(depth + 1);
      skip_space();
    } while (take(','));
    if (!take(']')) problem("expected ',' or ']' in an array");
  }
  void value(int depth) {
    if (depth > kMaxDepth) problem("values are nested more than 256 deep");
    if (string(nullptr) || object(depth)) return;
    if (take('[')) return array(depth);
    for (std::string_view word : {"true", "false", "null"}) {
      if (line_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return;
      }
    }
    number();
  }
  bool digits() {
    size_t start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > start;
  }
  void number() {
    bool minus = take('-');
    if (!take('0') && !digits()) problem(minus ? "expected digits" : "expected a value");
    if (take('.') && !digits()) problem("expected digits after '.'");
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) problem("expected digits in the exponent");
    }
  }

  // A string that is not wanted is only checked.
  bool string(std::string* out) {
    if (!take('"')) return false;
    for (;;) {
      size_t stop = at_;
      while (stop < line_.size() && line_[stop] != '"' && line_[stop] != '\\' &&
             static_cast<unsigned char>(line_[stop]) >= 0x20) {
        ++stop;
      }
      if (out) out->append(line_, at_, stop - at_);
      at_ = stop;
      if (take('"')) return true;
      if (at_ >= line_.size()) problem("the line ends inside a string");
      if (!take('\\')) problem("control character in a string; expected an escape such as \\n");
      escape(out);
    }
  }
  void escape(std::string* out) {
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    char c = peek();
    size_t known = c == '\0' ? std::string_view::npos : kFrom.find(c);
    if (known != std::string_view::npos) {
      ++at_;
      if (out) out->push_back(kTo[known]);
      return;
    }
    if (!take('u')) problem("unknown escape in a string");
    uint32_t code = hex4();
    if (code >= 0xd800 && code < 0xdc00 && line_.substr(at_, 2) == "\\u") {
      size_t back = at_;
      at_ += 2;
      uint32_t low = hex4();
      if (low >= 0xdc00 && low < 0xe000)
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      else
        at_ = back;
    }
    // A lone half of a surrogate pair is no character; web text has them, and one must not end a run.
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd;
    if (out) append_utf8(*out, code);
  }
  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      char c = peek();
      uint32_t digit = c >= '0' && c <= '9'   ? static_cast<uint32_t>(c - '0')
                       : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                       : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                              : 16;
      if (digit == 16) problem("expected four hexadecimal digits after \\u");
      code = code * 16 + digit;
    }
    return code;
  }
  static void append_utf8(std::string& out, uint32_t code) {
    auto byte = [&](uint32_t value) { out.push_back(static_cast<char>(value)); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) {
      byte(0xc0 | code >> 6);
    } else {
      if (code < 0x10000) {
        byte(0xe0 | code >> 12);
      } else {
        byte(0xf0 | code >> 18);
        byte(0x80 | (code >> 12 & 0x3f));
      }
      byte(0x80 | (code >> 6 & 0x3f));
    }
    byte(0x80 | (code & 0x3f));
  }

  std::string_view line_, key_;
  size_t at_ = 0;
  Found found_ = Found::nothing;
  std::string text_;
};

}  // namespace

std::optional<JsonProblem> append_json_string(std::string_view line, std::string_view key, std::string& out) {
  try {
    out += Parser(line, key).parse();
    return std::nullopt;
  } catch (JsonProblem& found) {
    return std::move(found);
  }
}

}  // namespace ottava::data
